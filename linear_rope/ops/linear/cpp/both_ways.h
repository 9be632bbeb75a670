// Every query sees every key: one state of all keys, which every query reads. Here no chunk waits for another.

// The queries of a piece read the state of all keys.
static void read_state(Call& c, const Projection& p, const Piece& piece, const Real* all_keys) {
  const Head h(c, piece.index);
  Arena arena(measured<ForwardMemory>(h));
  ForwardMemory m(h, arena);
  m.state.from(all_keys, h);
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), at = h.index * c.length + start;
    load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, padded(n), m.q, m.work);
    product(padded(n), h.values, h.features, {m.q.turned, h.feature_row, 1},
            {m.state.memory, PANEL, h.features * PANEL}, {m.out, h.value_row, PANEL}, false);
    const Real* queries = h.sums() ? summed(h, c.denominator_q, m.q, start, n, m.own_q) : nullptr;
    for (long i = 0; i < n; i++) {
      const Real total = queries ? dot(queries + i * h.feature_row, m.state.key_sum, h.features) : 0;
      if (queries) c.total[at + i] = total;
      scale(m.out + i * h.value_row, h.values, gain_of(h, total, m.state.stabiliser, m.q.log_scale[i]));
    }
    copy_out(m.out, h.value_row, n, c.values, h.at(c.output, start), c.output.position);
  }
}

// Gradients of the queries of a piece, and what they add to the gradient of the state, into `to`.
static void query_gradients(Call& c, const Projection& p, const Piece& piece, const Real* all_keys, Real* to) {
  const Head h(c, piece.index);
  Arena arena(measured<BackwardMemory>(h));
  BackwardMemory m(h, arena);
  const long row = h.feature_row;
  const bool own = c.denominator_q.data;
  State& state = m.states[0];
  state.from(all_keys, h);
  from_panels(h.features, h.values, state.memory, m.memory_rows, row);
  Factors f;
  std::fill(f.scale, f.scale + CHUNK, state.stabiliser);
  Real *G = to, *of_z = to + h.memory;
  std::memset(to, 0, h.state * sizeof(Real));
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), at = h.index * c.length + start;
    load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, padded(n), m.q, m.work);
    Real of_total[CHUNK];
    output_gradients(c, h, m, f, start, n, of_total);
    product(padded(n), h.features, h.values, {m.of_out, h.value_row, 1}, {m.memory_rows, row, PANEL},
            {m.grad_q, row, PANEL}, false);
    product(h.features, h.values, n, {m.q.turned, 1, row}, {m.of_out, h.value_row, PANEL},
            {G, PANEL, h.features * PANEL}, true);
    const Real* queries = h.sums() ? summed(h, c.denominator_q, m.q, start, n, m.own_q) : nullptr;
    const Real* rotation = h.rotation(c.q_rotation, c.q_rotation_batch, start);
    std::memset(m.added, 0, h.features * sizeof(Real));
    for (long r = 0; r < n; r++) {
      if (queries) add_to_key_sum(h, m.added, queries + r * row, 1, of_total[r]);
      Real* grad = m.grad_q + r * row;
      Real* of_own = own ? h.at(c.grad_denominator_q, start + r) : nullptr;
      finish_row(h, grad, state.key_sum, of_total[r], rotation ? rotation + r * c.features : nullptr, of_own);
      if (c.of_q) c.of_q[at + r] = dot(grad, m.q.mapped + r * row, h.features) + (own ? of_total[r] * dot(state.key_sum, queries + r * row, h.features) : 0);
    }
    add_to_key_sum(h, of_z, m.added, 1, 1);
    map_gradient(h, p, n, m.q.input, m.q.mapped, m.grad_q, h.at(c.grad_q, start), c.grad_q.position, m.work, m.wide);
  }
}

// Gradients of the keys and values of a piece, from that of the state of all keys, whose stabiliser is given.
static void key_gradients(Call& c, const Projection& p, const Piece& piece, double stabiliser, const Real* of_state) {
  const Head h(c, piece.index);
  Arena arena(measured<BackwardMemory>(h));
  BackwardMemory m(h, arena);
  const long row = h.feature_row;
  const bool own = c.denominator_k.data;
  const Real *G = of_state, *of_z = of_state + h.memory;
  from_panels(h.features, h.values, G, m.G_rows, row);
  Side& keys = m.k[0];
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), rows = padded(n), at = h.index * c.length + start;
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, padded(n), keys, m.work);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, h.value_row, h.values);
    product(rows, h.values, h.features, {keys.turned, row, 1}, {G, PANEL, h.features * PANEL},
            {m.grad_v, h.value_row, PANEL}, false);
    Real enter[CHUNK];
    for (long r = 0; r < n; r++) {
      enter[r] = h.is_padding(start + r) ? 0 : h.has_scale ? Real(std::exp(keys.log_scale[r] - stabiliser)) : 1;
      scale(m.grad_v + r * h.value_row, h.values, enter[r]);
      scale(m.v + r * h.value_row, h.values, enter[r]);
    }
    copy_out(m.grad_v, h.value_row, n, c.values, h.at(c.grad_v, start), c.grad_v.position);
    product(rows, h.features, h.values, {m.v, h.value_row, 1}, {m.G_rows, row, PANEL}, {m.grad_k, row, PANEL}, false);
    const Real* summed_keys = h.sums() ? summed(h, c.denominator_k, keys, start, n, m.own_k) : nullptr;
    const Real* rotation = h.rotation(c.k_rotation, c.k_rotation_batch, start);
    for (long r = 0; r < n; r++) {
      Real* grad = m.grad_k + r * row;
      Real* of_own = own ? h.at(c.grad_denominator_k, start + r) : nullptr;
      finish_row(h, grad, of_z, enter[r], rotation ? rotation + r * c.features : nullptr, of_own);
      if (c.of_k) c.of_k[at + r] = dot(grad, keys.mapped + r * row, h.features) + (own ? enter[r] * dot(of_z, summed_keys + r * row, h.features) : 0);
    }
    map_gradient(h, p, n, keys.input, keys.mapped, m.grad_k, h.at(c.grad_k, start), c.grad_k.position, m.work, m.wide);
  }
}

static int run_both_ways_forward(Call* call) {
  Call& c = *call;
  const Projection p(c, false);
  Call of_keys = c;
  of_keys.length = c.keys;
  std::vector<Real> added;
  const std::vector<Piece> pieces = pieces_of(of_keys, &added);
  const long sequences = c.batch * c.heads, each = long(pieces.size()) / sequences;
  run(c, long(pieces.size()), [&](long i) { piece_state(of_keys, p, pieces[i], pieces[i].passed); });
  for (long i = 0; i < sequences; i++) {
    const Head h(of_keys, i);
    for (long j = i * each + 1; j < (i + 1) * each; j++) join_states(h, pieces[j - 1].passed, 0, pieces[j].passed);
    const Real* state = pieces[(i + 1) * each - 1].passed;
    unpack(h, state, c.new_memory + i * c.features * c.values);
    if (h.sums()) std::memcpy(c.new_key_sum + i * c.features, state + h.memory, c.features * sizeof(Real));
    if (c.new_stabiliser) std::memcpy(c.new_stabiliser + i, state + h.memory + h.features, sizeof(double));
  }
  const std::vector<Piece> readers = pieces_of(c, nullptr);
  run(c, long(readers.size()), [&](long i) {
    read_state(c, p, readers[i], pieces[(readers[i].index + 1) * each - 1].passed);
  });
  return DONE;
}

// c.memory, c.key_sum and c.stabiliser are the state that the forward pass ended with.
static int run_both_ways_backward(Call* call) {
  Call& c = *call;
  const Projection p(c, true);
  const long sequences = c.batch * c.heads, size = Head(c, 0).state;
  std::vector<Real> states(sequences * size), added;
  std::vector<double> stabilisers(sequences);
  for (long i = 0; i < sequences; i++) {
    const Head h(c, i);
    Real* to = states.data() + i * size;
    const State state = first_state(h, to, to + h.memory);
    stabilisers[i] = state.stabiliser;
    std::memcpy(to + h.memory + h.features, &state.stabiliser, sizeof(double));
  }
  const std::vector<Piece> readers = pieces_of(c, &added);
  const long each = long(readers.size()) / sequences;
  run(c, long(readers.size()), [&](long i) {
    query_gradients(c, p, readers[i], states.data() + readers[i].index * size, readers[i].passed);
  });
  for (long i = 0; i < long(readers.size()); i++)
    if (i % each) add_state(Head(c, readers[i].index), readers[i - 1].passed, 1, readers[i].passed);
  Call of_keys = c;
  of_keys.length = c.keys;
  const std::vector<Piece> pieces = pieces_of(of_keys, nullptr);
  run(c, long(pieces.size()), [&](long i) {
    const long index = pieces[i].index;
    key_gradients(of_keys, p, pieces[i], stabilisers[index], readers[(index + 1) * each - 1].passed);
  });
  return DONE;
}
