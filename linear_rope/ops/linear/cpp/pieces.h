// Sequences in pieces, and the tasks of a call on threads.

// What a piece adds to the state, from no state at all. Returns the logarithm of what it keeps of the state before.
static double piece_state(Call& c, const Projection& p, const Piece& piece, Real* to) {
  const Head h(c, piece.index);
  Arena arena(measured<ForwardMemory>(h));
  ForwardMemory m(h, arena);
  std::memset(m.state.memory, 0, h.memory * sizeof(Real));
  std::memset(m.state.key_sum, 0, h.features * sizeof(Real));
  m.state.stabiliser = h.has_scale ? SMALLEST : 0;
  Factors f;
  double log_kept = 0;
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk);
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, padded(n), m.k, m.work);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, h.value_row, h.values);
    find_factors(h, start, n, m.k.log_scale, m.state.stabiliser, f);
    if (h.sums()) add_keys(h, f, m.pairs, n, summed(h, c.denominator_k, m.k, start, n, m.own_k), m.added, m.state.key_sum);
    add_chunk(h, f, m.pairs, n, m.k.turned, m.v, m.faded, m.state);
    if (c.log_decay)
      for (long i = 0; i < n; i++) log_kept += c.log_decay[piece.index * c.length + start + i];
  }
  m.state.to(to, h);
  return log_kept;
}

// What a piece's queries add to the gradient of the state before it. Returns what the piece keeps of such a state.
static double piece_gradient(Call& c, const Projection& p, const Piece& piece, Real* to) {
  const Head h(c, piece.index);
  Arena arena(measured<BackwardMemory>(h));
  BackwardMemory m(h, arena);
  State state = m.states[0];
  state.from(c.saved + (piece.first / SAVED * c.batch * c.heads + piece.index) * h.state, h);
  Real *G = to, *of_z = to + h.memory;
  std::memset(to, 0, h.state * sizeof(Real));
  Factors f;
  double kept = 1;
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk);
    load_side(h, p, c.k, c.key_scale, nullptr, 0, true, start, n, padded(n), m.k[0], m.work);
    load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, padded(n), m.q, m.work);
    find_factors(h, start, n, m.k[0].log_scale, state.stabiliser, f);
    Real of_total[CHUNK];
    output_gradients(c, h, m, f, start, n, of_total);
    const Real* queries = h.sums() ? summed(h, c.denominator_q, m.q, start, n, m.own_q) : nullptr;
    std::memset(m.added, 0, h.features * sizeof(Real));
    for (long i = 0; i < n; i++) {
      const Real read = Real(f.read[i] * kept);
      scale(m.of_out + i * h.value_row, h.values, read);
      if (h.sums()) add_to_key_sum(h, m.added, queries + i * h.feature_row, 1, of_total[i] * read);
    }
    add_to_key_sum(h, of_z, m.added, 1, 1);
    product(h.features, h.values, n, {m.q.turned, 1, h.feature_row}, {m.of_out, h.value_row, PANEL},
            {G, PANEL, h.features * PANEL}, true);
    state.stabiliser = f.end;
    kept *= f.last;
  }
  return kept;
}

// to += by * from, of all numbers of a state but the stabiliser.
static void add_state(const Head& h, const Real* from, Real by, Real* to) {
  const Vector times = all(by);
  for (long i = 0; i < h.memory + h.features; i += LANES) store(to + i, load(to + i) + load(from + i) * times);
}

// The state after a piece, from the one before it and what the piece adds (overwritten).
static void join_states(const Head& h, const Real* before, double log_kept, Real* added) {
  const long at = h.memory + h.features;
  double first, second;
  std::memcpy(&first, before + at, sizeof(double));
  std::memcpy(&second, added + at, sizeof(double));
  const double faded = first + log_kept, now = h.has_scale ? std::max(faded, second) : second;
  if (second != now) scale(added, at, Real(std::exp(second - now)));
  add_state(h, before, faded == now ? 1 : Real(std::exp(faded - now)), added);
  std::memcpy(added + at, &now, sizeof(double));
}

template <typename Task>
struct Work {
  Task task;
  long tasks;
  std::atomic<long> next{0};
  std::atomic<bool> lacks_memory{false};
  static void take(void* data) {
    Work& work = *static_cast<Work*>(data);
    try {
      for (long i = work.next++; i < work.tasks; i = work.next++) work.task(i);
    } catch (const std::bad_alloc&) {  // none may leave a thread
      work.lacks_memory = true;
    }
  }
};

template <typename Task>
static void run(const Call& c, long tasks, Task task) {
  Work<Task> work{task, tasks};
  const long threads = std::min(c.threads, tasks);
#ifdef LINEAR_ROPE_THREADS
  std::vector<std::thread> others;
  for (long i = 1; i < threads; i++) others.emplace_back(Work<Task>::take, &work);
  Work<Task>::take(&work);
  for (auto& other : others) other.join();
#else
  if (c.parallel && threads > 1)
    c.parallel(Work<Task>::take, &work, unsigned(threads), 0);
  else
    Work<Task>::take(&work);
#endif
  if (work.lacks_memory) throw std::bad_alloc();
}

// The pieces of all sequences, (batch * heads, pieces): decided by shapes alone, so that results keep their bits.
static std::vector<Piece> pieces_of(const Call& c, std::vector<Real>* passed) {
  const long sequences = c.batch * c.heads, chunks = chunk_count(c), state = Head(c, 0).state;
  const long pieces = c.pair_decay ? 1 : std::max(1L, std::min(TASKS / sequences, chunks / (2 * SAVED)));
  std::vector<Piece> all;
  if (passed) passed->resize(sequences * pieces * state);
  for (long i = 0; i < sequences; i++)
    for (long j = 0; j < pieces; j++) {
      const long first = j * chunks / pieces / SAVED * SAVED;
      const long last = j + 1 < pieces ? (j + 1) * chunks / pieces / SAVED * SAVED : chunks;
      all.push_back({i, first, last, passed ? passed->data() + (i * pieces + j) * state : nullptr});
    }
  return all;
}

static int run_forward(Call* call) {
  Call& c = *call;
  const Projection p(c, false);
  if (c.length == 1 && !c.saved && !c.pair_decay) {
    const long tasks = c.batch * c.heads;
    const auto task = [&](long i) { step(c, p, i); };
    if (tasks * c.features * c.values < WORTH_A_THREAD)
      for (long i = 0; i < tasks; i++) task(i);
    else
      run(c, tasks, task);
    return DONE;
  }
  std::vector<Real> passed;
  const std::vector<Piece> pieces = pieces_of(c, &passed);
  const long count = long(pieces.size());
  std::vector<double> log_kept(count);
  if (count > c.batch * c.heads)
    run(c, count, [&](long i) {
      if (pieces[i].last < chunk_count(c)) log_kept[i + 1] = piece_state(c, p, pieces[i], pieces[i + 1].passed);
    });
  for (long i = 0; i < count; i++) {
    const Head h(c, pieces[i].index);
    Real* to = pieces[i].passed;
    if (pieces[i].first == 0) {
      const State state = first_state(h, to, to + h.memory);
      std::memcpy(to + h.memory + h.features, &state.stabiliser, sizeof(double));
    } else
      join_states(h, pieces[i - 1].passed, log_kept[i], to);
  }
  run(c, count, [&](long i) { forward(c, p, pieces[i]); });
  return DONE;
}

static int run_backward(Call* call) {
  Call& c = *call;
  const Projection p(c, true);
  std::vector<Real> passed;
  const std::vector<Piece> pieces = pieces_of(c, &passed);
  const long count = long(pieces.size());
  std::vector<double> kept(count);
  if (count > c.batch * c.heads)
    run(c, count, [&](long i) {
      if (pieces[i].first > 0) kept[i - 1] = piece_gradient(c, p, pieces[i], pieces[i - 1].passed);
    });
  for (long i = count - 1; i >= 0; i--) {
    const Head h(c, pieces[i].index);
    if (pieces[i].last == chunk_count(c)) {
      pack(h, c.grad_new_memory ? c.grad_new_memory + h.index * c.features * c.values : nullptr, pieces[i].passed);
      pack_vector(h, c.grad_new_key_sum ? c.grad_new_key_sum + h.index * c.features : nullptr,
                  pieces[i].passed + h.memory);
    } else {
      add_state(h, pieces[i + 1].passed, Real(kept[i]), pieces[i].passed);
    }
  }
  run(c, count, [&](long i) { backward(c, p, pieces[i]); });
  return DONE;
}
