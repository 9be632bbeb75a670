// The backward pass over the chunks of a piece, from the last to the first.

struct BackwardMemory {
  Side q, k[SAVED];
  Real *v, *grad_v, *of_out, *of_read, *grad_q, *grad_k, *panels, *v_panels, *S, *of_S, *P, *work, *wide, *own_q, *own_k;
  Real *G, *G_rows, *memory_rows, *z, *of_z, *added, *faded;
  Pairs pairs, own_pairs;
  State states[SAVED];
  BackwardMemory(const Head& h, Arena& arena) {
    const long features = CHUNK * h.feature_row, values = CHUNK * h.value_row, inputs = CHUNK * h.width_row;
    const long pairs = CHUNK * (CHUNK + PANEL), turned = h.call.q_rotation ? features : 0;
    q = {arena.take(inputs), arena.take(features), arena.take(turned), nullptr, {}};
    for (long i = 0; i < SAVED; i++) {
      // Rotated keys are made again where they are needed: one place for all.
      k[i] = {arena.take(inputs), arena.take(features), i ? k[0].rotated : arena.take(turned), nullptr, {}};
      states[i] = {arena.take(h.memory), arena.take(h.features), 0};
    }
    for (Real** x : {&v, &grad_v, &of_out, &of_read}) *x = arena.take(values);
    for (Real** x : {&grad_q, &grad_k, &work}) *x = arena.take(features);
    panels = arena.take(CHUNK * h.features);
    v_panels = arena.take(CHUNK * h.values);
    for (Real** x : {&S, &of_S, &P}) *x = arena.take(pairs);
    wide = arena.take(inputs);
    own_q = arena.take(h.call.denominator_q.data ? features : 0);
    own_k = arena.take(h.call.denominator_q.data ? features : 0);
    G = arena.take(h.memory);
    G_rows = arena.take(h.values * h.feature_row);
    memory_rows = arena.take(h.values * h.feature_row);
    z = arena.take(h.features);
    of_z = arena.take(h.features);
    added = arena.take(h.features);
    faded = arena.take(h.call.pair_decay ? features : 0);
    this->pairs.take(arena, h.call.pair_decay ? features : 0);
    own_pairs.take(arena, h.call.denominator_decay ? features : 0);
  }
};

// The state before each chunk of a stretch, and its mapped keys, from the state that was saved before the first.
static void remake_states(Call& c, const Projection& p, const Head& h, BackwardMemory& m, long first, long last) {
  m.states[0].from(c.saved + (first / SAVED * c.batch * c.heads + h.index) * h.state, h);
  Factors f;
  for (long chunk = first; chunk < last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), i = chunk - first;
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, padded(n), m.k[i], m.work);
    if (chunk + 1 == last) break;
    State& next = m.states[i + 1];
    std::memcpy(next.memory, m.states[i].memory, h.memory * sizeof(Real));
    std::memcpy(next.key_sum, m.states[i].key_sum, h.features * sizeof(Real));
    find_factors(h, start, n, m.k[i].log_scale, m.states[i].stabiliser, f);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, h.value_row, h.values);
    const Pairs& own = c.pair_decay ? find_pairs(h, start, n, m.pairs, m.own_pairs) : m.pairs;
    if (h.sums()) add_keys(h, f, own, n, summed(h, c.denominator_k, m.k[i], start, n, m.own_k), m.added, next.key_sum);
    add_chunk(h, f, m.pairs, n, m.k[i].turned, m.v, m.faded, next);
  }
}

// The gradient of one side's features becomes that of the unrotated ones, with what the denominator adds to it.
INLINE void finish_row(const Head& h, Real* grad, const Real* of_sum, Real times, const Real* rotation, Real* own) {
  const Vector by = all(times);
  const bool before = h.call.denominator == ROTATED, after = h.sums() && !before && !own;
  if (before)
    for (long m = 0; m < h.features; m += LANES) store(grad + m, load(grad + m) + load(of_sum + m) * by);
  if (rotation) turn_row<true>(grad, grad, rotation, h);
  if (after)
    for (long m = 0; m < h.features; m += LANES) store(grad + m, load(grad + m) + load(of_sum + m) * by);
  if (own)
    for (long m = 0; m < h.call.features; m++) own[m] = of_sum[m] * times;
}

// Through the quotient: the gradients of the sums, into of_out, and of the denominators.
static void output_gradients(Call& c, const Head& h, BackwardMemory& m, const Factors& f, long start, long n,
                             Real* of_total) {
  const long at = h.index * c.length + start;
  copy_in(h.at(c.grad_output, start), c.grad_output.position, n, c.values, m.of_out, h.value_row, h.values);
  for (long r = 0; r < n; r++) {
    Real* of = m.of_out + r * h.value_row;
    const Real gain = gain_of(h, h.sums() ? c.total[at + r] : 0, f.scale[r], m.q.log_scale[r]);
    scale(of, h.values, gain);
    if (h.sums()) {
      const Real* out = h.at(c.output, start + r);
      Vector of_all = {};
      long d = 0;
      for (; d + LANES <= c.values; d += LANES) of_all += load(of + d) * load(out + d);
      Real s = sum(of_all);
      for (; d < c.values; d++) s += of[d] * out[d];
      of_total[r] = (c.grad_total ? c.grad_total[at + r] : 0) - s;
    }
  }
}

static void chunk_gradients(Call& c, const Projection& p, const Head& h, BackwardMemory& m, long chunk, long i) {
  const long start = chunk * CHUNK, n = h.rows(chunk), at = h.index * c.length + start;
  const long rows = padded(n);
  const long row = h.feature_row, value_row = h.value_row, pair_row = CHUNK + PANEL;
  const State& state = m.states[i];
  Side& keys = m.k[i];
  load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, padded(n), m.q, m.work);
  const Real* rotation = h.rotation(c.k_rotation, c.k_rotation_batch, start);
  if (rotation) {
    for (long r = 0; r < n; r++) turn_row<false>(keys.rotated + r * row, keys.mapped + r * row, rotation + r * c.features, h);
    std::memset(keys.rotated + n * row, 0, (rows - n) * row * sizeof(Real));
  }
  copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, value_row, h.values);
  Factors f;
  find_factors(h, start, n, keys.log_scale, state.stabiliser, f);

  Real of_total[CHUNK];
  output_gradients(c, h, m, f, start, n, of_total);
  std::memcpy(m.of_read, m.of_out, rows * value_row * sizeof(Real));
  if (h.has_factors)
    for (long r = 0; r < n; r++) scale(m.of_read + r * value_row, h.values, f.read[r]);

  const Pairs& own_pairs = c.pair_decay ? find_pairs(h, start, n, m.pairs, m.own_pairs) : m.pairs;
  to_panels(rows, h.values, m.v, value_row, m.v_panels);
  if (!c.pair_decay) {
    to_panels(rows, h.features, keys.turned, row, m.panels);
    lower_product(rows, h.features, {m.q.turned, row, 1}, {m.panels, PANEL, h.features * PANEL}, m.S, pair_row);
  }
  lower_product(rows, h.values, {m.of_out, value_row, 1}, {m.v_panels, PANEL, h.values * PANEL}, m.of_S, pair_row);
  pair_factors(f, n, m.P, pair_row);
  if (!c.pair_decay) weigh(rows, m.S, m.P, pair_row);
  weigh(rows, m.of_S, m.P, pair_row);

  // grad_q = of_S K + of_read memory^T
  from_panels(h.features, h.values, state.memory, m.memory_rows, row);
  product(rows, h.features, h.values, {m.of_read, value_row, 1}, {m.memory_rows, row, PANEL}, {m.grad_q, row, PANEL},
          false);
  const Real* entering = keys.turned;
  if (c.pair_decay) {
    faded_rows(h, m.grad_q, m.pairs.until, n, rows, m.grad_q);
    pair_products(h, m.pairs, n, m.q.turned, keys.turned, m.faded, m.S, m.of_S, m.grad_q, pair_row);
    weigh(rows, m.S, m.P, pair_row);
    faded_rows(h, keys.turned, m.pairs.left, n, rows, m.faded);
    entering = m.faded;
  } else {
    lower_times(rows, h.features, m.of_S, pair_row, {keys.turned, row, PANEL}, m.grad_q, row);
  }
  // grad_v = stay (K G) + S^T of_out
  product(rows, h.values, h.features, {entering, row, 1}, {m.G, PANEL, h.features * PANEL},
          {m.grad_v, value_row, PANEL}, false);
  if (h.has_factors)
    for (long r = 0; r < n; r++) {
      scale(m.grad_v + r * value_row, h.values, f.stay[r]);
      scale(m.v + r * value_row, h.values, f.stay[r]);
    }
  lower_transposed_times(rows, h.values, m.S, pair_row, {m.of_out, value_row, PANEL}, m.grad_v, value_row);
  copy_out(m.grad_v, value_row, n, c.values, h.at(c.grad_v, start), c.grad_v.position);
  // grad_k = (stay V) G^T + of_S^T Q
  from_panels(h.features, h.values, m.G, m.G_rows, row);
  product(rows, h.features, h.values, {m.v, value_row, 1}, {m.G_rows, row, PANEL}, {m.grad_k, row, PANEL}, false);
  const Real* reading = m.q.turned;
  if (c.pair_decay) {
    faded_rows(h, m.grad_k, m.pairs.left, n, rows, m.grad_k);
    pair_key_gradients(h, m.pairs, n, m.q.turned, m.faded, m.of_S, pair_row, m.grad_k);
    faded_rows(h, m.q.turned, m.pairs.until, n, n, m.faded);
    fade(h, m.pairs.until + (n - 1) * row, m.G);
    reading = m.faded;
  } else {
    lower_transposed_times(rows, h.features, m.of_S, pair_row, {m.q.turned, row, PANEL}, m.grad_k, row);
  }
  // G <- last G + Q^T of_read
  if (f.last != 1) scale(m.G, h.memory, f.last);
  product(h.features, h.values, n, {reading, 1, row}, {m.of_read, value_row, PANEL},
          {m.G, PANEL, h.features * PANEL}, true);

  const Real *sum_q = nullptr, *sum_k = nullptr;
  if (h.sums()) {
    sum_q = summed(h, c.denominator_q, m.q, start, n, m.own_q);
    sum_k = summed(h, c.denominator_k, keys, start, n, m.own_k);
    std::memcpy(m.z, state.key_sum, h.features * sizeof(Real));
  }
  const Real* q_rotation = h.rotation(c.q_rotation, c.q_rotation_batch, start);
  const bool own = c.denominator_q.data;
  // With pairs, vector times gradient: of the numerator, while both are rotated, and of the denominator.
  const auto put_exponents = [&](Real* to, const Real* grad, const Real* x, const Real* sum, Real times, long r) {
    for (long i = 0; i < h.features; i++) {
      m.faded[i] = grad[i] * x[i];
      if (sum) m.faded[row + i] = times * m.z[i] * sum[i];
    }
    to += h.index * exponents(c) * c.length + start + r;
    put_pair_exponents(c, m.faded, sum ? m.faded + row : nullptr, to, c.length);
  };
  for (long r = 0; r < n; r++) {
    if (h.sums() && c.pair_decay) multiply(m.z, own_pairs.each + r * row, h.features);
    if (h.sums()) add_to_key_sum(h, m.z, sum_k + r * row, f.kept[r], f.enter[r]);
    Real* grad = m.grad_q + r * row;
    Real* to = own ? h.at(c.grad_denominator_q, start + r) : nullptr;
    if (c.pair_decay) put_exponents(c.of_q, grad, m.q.turned + r * row, sum_q ? sum_q + r * row : nullptr, of_total[r], r);
    finish_row(h, grad, m.z, of_total[r], q_rotation ? q_rotation + r * c.features : nullptr, to);
    if (c.of_q && !c.pair_decay) c.of_q[at + r] = dot(grad, m.q.mapped + r * row, h.features) + (own ? of_total[r] * dot(m.z, sum_q + r * row, h.features) : 0);
  }
  // Here too what the chunk adds is summed by itself; z is now that of each position.
  std::memcpy(m.z, m.of_z, h.features * sizeof(Real));
  std::memset(m.added, 0, h.features * sizeof(Real));
  for (long r = n - 1; r >= 0; r--) {
    if (h.sums())
      for (Real* z : {m.z, m.added}) add_to_key_sum(h, z, sum_q + r * row, 1, of_total[r]);
    Real* grad = m.grad_k + r * row;
    Real* to = own ? h.at(c.grad_denominator_k, start + r) : nullptr;
    if (c.pair_decay) put_exponents(c.of_k, grad, keys.turned + r * row, sum_k ? sum_k + r * row : nullptr, f.enter[r], r);
    finish_row(h, grad, m.z, f.enter[r], rotation ? rotation + r * c.features : nullptr, to);
    if (c.of_k && !c.pair_decay) c.of_k[at + r] = dot(grad, keys.mapped + r * row, h.features) + (own ? f.enter[r] * dot(m.z, sum_k + r * row, h.features) : 0);
    if (h.sums() && f.kept[r] != 1)
      for (Real* z : {m.z, m.added}) scale(z, h.features, f.kept[r]);
    if (h.sums() && c.pair_decay)
      for (Real* z : {m.z, m.added}) multiply(z, own_pairs.each + r * row, h.features);
  }
  if (c.pair_decay) multiply(m.of_z, own_pairs.until + (n - 1) * row, h.features);
  add_to_key_sum(h, m.of_z, m.added, f.last, 1);
  map_gradient(h, p, n, m.q.input, m.q.mapped, m.grad_q, h.at(c.grad_q, start), c.grad_q.position, m.work, m.wide);
  map_gradient(h, p, n, keys.input, keys.mapped, m.grad_k, h.at(c.grad_k, start), c.grad_k.position, m.work, m.wide);
}

// The gradient of the exponent of the state that was saved before a chunk, from that of the state.
static double exponent_of_state(const Head& h, const BackwardMemory& m, long chunk) {
  const Call& c = h.call;
  const Real* state = c.saved + (chunk / SAVED * c.batch * c.heads + h.index) * h.state;
  double total = h.sums() ? dot(m.of_z, state + h.memory, h.features) : 0;
  for (long i = 0; i < h.memory; i += h.features) total += dot(m.G + i, state + i, h.features);
  return total;
}

// Likewise of the exponents of pairs, `stride` apart.
static void pair_exponents_of_state(const Head& h, const BackwardMemory& m, long chunk, double* to, long stride) {
  const Call& c = h.call;
  const Real* state = c.saved + (chunk / SAVED * c.batch * c.heads + h.index) * h.state;
  std::vector<double> above(h.features), below(h.sums() ? h.features : 0);
  for (long i = 0; i < h.features; i++) {
    for (long d = 0; d < h.memory; d += h.features * PANEL) above[i] += dot(m.G + d + i * PANEL, state + d + i * PANEL, PANEL);
    if (h.sums()) below[i] = m.of_z[i] * state[h.memory + i];
  }
  put_pair_exponents(c, above.data(), h.sums() ? below.data() : nullptr, to, stride);
}

static void backward(Call& c, const Projection& p, const Piece& piece) {
  const long index = piece.index;
  const Head h(c, index);
  Arena arena(measured<BackwardMemory>(h));
  BackwardMemory m(h, arena);
  std::memcpy(m.G, piece.passed, h.memory * sizeof(Real));
  std::memcpy(m.of_z, piece.passed + h.memory, h.features * sizeof(Real));
  for (long first = (piece.last - 1) / SAVED * SAVED; first >= piece.first; first -= SAVED) {
    const long last = std::min(first + SAVED, piece.last);
    const long stretches = (h.chunks() + SAVED - 1) / SAVED;
    if (c.pair_decay && last < h.chunks())
      pair_exponents_of_state(h, m, last, c.of_states + index * exponents(c) * stretches + first / SAVED, stretches);
    else if (c.of_states && last < h.chunks())
      c.of_states[index * stretches + first / SAVED] = exponent_of_state(h, m, last);
    remake_states(c, p, h, m, first, last);
    for (long chunk = last - 1; chunk >= first; chunk--) chunk_gradients(c, p, h, m, chunk, chunk - first);
  }
  if (piece.first > 0) return;
  if (c.grad_memory) unpack(h, m.G, c.grad_memory + index * c.features * c.values);
  if (c.grad_key_sum) std::memcpy(c.grad_key_sum + index * c.features, m.of_z, c.features * sizeof(Real));
}
