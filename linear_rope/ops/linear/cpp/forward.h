// The forward pass over the chunks of a piece.

template <bool BACK>
INLINE void turn_row(Real* to, const Real* from, const Real* rotation, const Head& h) {
  const long whole = h.call.features / LANES * LANES;
  for (long m = 0; m < whole; m += LANES) store(to + m, turn<BACK>(load(from + m), load(rotation + m)));
  for (long m = whole; m < h.call.features; m += 2) {
    const Real x = from[m], y = from[m + 1], cosine = rotation[m], sine = BACK ? -rotation[m + 1] : rotation[m + 1];
    to[m] = x * cosine - y * sine;
    to[m + 1] = x * sine + y * cosine;
  }
  std::memset(to + h.call.features, 0, (h.features - h.call.features) * sizeof(Real));
}

// Queries or keys of a chunk: the features, and the same rotated.
struct Side {
  Real *input, *mapped, *rotated;
  const Real* turned;  // `rotated`, or `mapped` where nothing rotates
  double log_scale[CHUNK] = {};
};

// n positions from `start` on, and zeros below them up to so many rows.
static void load_side(const Head& h, const Projection& p, const Rows& x, const double* given_scale, const Real* table,
               long table_batch, bool keys, long start, long n, long rows, Side& side, Real* work) {
  const Call& c = h.call;
  copy_rows(h.at(x, start), x.position, n, rows, c.width, side.input, h.width_row, h.width);
  map_rows(h, p, n, rows, side.input, side.mapped, side.log_scale, work);
  if (given_scale) std::memcpy(side.log_scale, given_scale + h.index * c.length + start, n * sizeof(double));
  if (keys && c.padding)
    for (long i = 0; i < n; i++)
      if (h.is_padding(start + i)) std::memset(side.mapped + i * h.feature_row, 0, h.features * sizeof(Real));
  const Real* rotation = h.rotation(table, table_batch, start);
  side.turned = rotation ? side.rotated : side.mapped;
  if (!rotation) return;
  for (long i = 0; i < n; i++)
    turn_row<false>(side.rotated + i * h.feature_row, side.mapped + i * h.feature_row, rotation + i * c.features, h);
  std::memset(side.rotated + n * h.feature_row, 0, (rows - n) * h.feature_row * sizeof(Real));
}

// What the denominator sums, (CHUNK x features): features of its own, or the mapped, or the rotated ones.
static const Real* summed(const Head& h, const Rows& own, const Side& side, long start, long n, Real* work) {
  if (own.data) {
    copy_in(h.at(own, start), own.position, n, h.call.features, work, h.feature_row, h.features);
    return work;
  }
  return h.call.denominator == ROTATED ? side.turned : side.mapped;
}

INLINE Real gain_of(const Head& h, Real total, double scale, double query_scale) {
  if (h.sums()) return total == 0 ? 0 : 1 / total;
  if (!h.has_scale && !h.call.query_scale) return 1;
  return Real(std::exp(std::min<double>((h.has_scale ? scale : 0) + query_scale, LARGEST_LOG_SCALE)));
}

struct ForwardMemory {
  Side q, k;
  Real *v, *out, *panels, *S, *P, *work, *own_q, *own_k, *added, *faded;
  Pairs pairs, own_pairs;
  State state;
  ForwardMemory(const Head& h, Arena& arena) {
    const long features = CHUNK * h.feature_row, values = CHUNK * h.value_row;
    for (Side* side : {&q, &k}) {
      side->input = arena.take(CHUNK * h.width_row);
      side->mapped = arena.take(features);
      side->rotated = arena.take(h.call.q_rotation ? features : 0);
    }
    v = arena.take(values);
    out = arena.take(values);
    panels = arena.take(CHUNK * h.features);
    S = arena.take(CHUNK * (CHUNK + PANEL));
    P = arena.take(CHUNK * (CHUNK + PANEL));
    work = arena.take(features);
    own_q = arena.take(h.call.denominator_q.data ? features : 0);
    own_k = arena.take(h.call.denominator_q.data ? features : 0);
    added = arena.take(h.features);
    faded = arena.take(h.call.pair_decay ? features : 0);
    pairs.take(arena, h.call.pair_decay ? features : 0);
    own_pairs.take(arena, h.call.denominator_decay ? features : 0);
    state.memory = arena.take(h.memory);
    state.key_sum = arena.take(h.features);
  }
};

// The state after n positions whose keys and values are loaded; `v` is overwritten, and `faded` where pairs fade.
static void add_chunk(const Head& h, const Factors& f, const Pairs& pairs, long n, const Real* keys, Real* v, Real* faded,
                      State& state) {
  if (h.call.pair_decay) {
    faded_rows(h, keys, pairs.left, n, n, faded);
    fade(h, pairs.until + (n - 1) * h.feature_row, state.memory);
    keys = faded;
  }
  if (h.has_factors) {
    for (long i = 0; i < n; i++) scale(v + i * h.value_row, h.values, f.stay[i]);
    if (f.last != 1) scale(state.memory, h.memory, f.last);
  }
  product(h.features, h.values, n, {keys, 1, h.feature_row}, {v, h.value_row, PANEL},
          {state.memory, PANEL, h.features * PANEL}, true);
  state.stabiliser = f.end;
}

INLINE void add_to_key_sum(const Head& h, Real* z, const Real* key, Real kept, Real enter) {
  for (long m = 0; m < h.features; m += LANES) store(z + m, load(z + m) * kept + load(key + m) * enter);
}

// The key_sum after n positions. These are summed by themselves: a long sum loses much of each by itself.
static void add_keys(const Head& h, const Factors& f, const Pairs& own, long n, const Real* keys, Real* added, Real* z) {
  std::memset(added, 0, h.features * sizeof(Real));
  for (long i = 0; i < n; i++) {
    if (h.call.pair_decay) multiply(added, own.each + i * h.feature_row, h.features);
    add_to_key_sum(h, added, keys + i * h.feature_row, f.kept[i], f.enter[i]);
  }
  if (h.call.pair_decay) multiply(z, own.until + (n - 1) * h.feature_row, h.features);
  add_to_key_sum(h, z, added, f.last, 1);
}

static void forward(Call& c, const Projection& p, const Piece& piece) {
  const long index = piece.index;
  const Head h(c, index);
  Arena arena(measured<ForwardMemory>(h));
  ForwardMemory m(h, arena);
  m.state.from(piece.passed, h);
  const long row = h.feature_row, value_row = h.value_row, pair_row = CHUNK + PANEL;
  Factors f;
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), rows = padded(n);
    if (c.saved && chunk % SAVED == 0)
      m.state.to(c.saved + (chunk / SAVED * c.batch * c.heads + index) * h.state, h);
    load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, padded(n), m.q, m.work);
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, padded(n), m.k, m.work);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, value_row, h.values);
    find_factors(h, start, n, m.k.log_scale, m.state.stabiliser, f);
    const Pairs& own = c.pair_decay ? find_pairs(h, start, n, m.pairs, m.own_pairs) : m.pairs;
    Real total[CHUNK] = {};
    if (h.sums() && c.pair_decay) {
      const Real* queries = summed(h, c.denominator_q, m.q, start, n, m.own_q);
      const Real* keys = summed(h, c.denominator_k, m.k, start, n, m.own_k);
      std::memset(m.added, 0, h.features * sizeof(Real));
      faded_rows(h, queries, own.until, n, n, m.faded);
      for (long i = 0; i < n; i++) {
        multiply(m.added, own.each + i * row, h.features);
        add_to_key_sum(h, m.added, keys + i * row, f.kept[i], f.enter[i]);
        total[i] = f.read[i] * dot(m.faded + i * row, m.state.key_sum, h.features) + dot(queries + i * row, m.added, h.features);
      }
      multiply(m.state.key_sum, own.until + (n - 1) * row, h.features);
      add_to_key_sum(h, m.state.key_sum, m.added, f.last, 1);
    } else if (h.sums()) {
      const Real* queries = summed(h, c.denominator_q, m.q, start, n, m.own_q);
      const Real* keys = summed(h, c.denominator_k, m.k, start, n, m.own_k);
      Real *z = m.state.key_sum, *added = m.added;
      std::memset(added, 0, h.features * sizeof(Real));
      for (long i = 0; i < n; i++) {
        const Vector kept = all(f.kept[i]), enter = all(f.enter[i]), read = all(f.read[i]);
        Vector s0 = {}, s1 = {};
        for (long j = 0; j < h.features; j += PANEL) {
          const Vector a0 = load(added + j) * kept + load(keys + i * row + j) * enter;
          const Vector a1 = load(added + j + LANES) * kept + load(keys + i * row + j + LANES) * enter;
          store(added + j, a0);
          store(added + j + LANES, a1);
          s0 += load(queries + i * row + j) * (load(z + j) * read + a0);
          s1 += load(queries + i * row + j + LANES) * (load(z + j + LANES) * read + a1);
        }
        total[i] = sum(s0 + s1);
      }
      add_to_key_sum(h, z, added, f.last, 1);
    }
    const Real* reading = m.q.turned;
    if (c.pair_decay) {
      pair_products(h, m.pairs, n, m.q.turned, m.k.turned, m.faded, m.S, nullptr, nullptr, pair_row);
      faded_rows(h, m.q.turned, m.pairs.until, n, rows, m.faded);
      reading = m.faded;
    } else {
      to_panels(rows, h.features, m.k.turned, row, m.panels);
      lower_product(rows, h.features, {m.q.turned, row, 1}, {m.panels, PANEL, h.features * PANEL}, m.S, pair_row);
    }
    pair_factors(f, n, m.P, pair_row);
    weigh(rows, m.S, m.P, pair_row);
    product(rows, h.values, h.features, {reading, row, 1}, {m.state.memory, PANEL, h.features * PANEL},
            {m.out, value_row, PANEL}, false);
    if (h.has_factors)
      for (long i = 0; i < n; i++) scale(m.out + i * value_row, h.values, f.read[i]);
    lower_times(rows, h.values, m.S, pair_row, {m.v, value_row, PANEL}, m.out, value_row);
    for (long i = 0; i < n; i++) {
      const long at = index * c.length + start + i;
      scale(m.out + i * value_row, h.values, gain_of(h, total[i], f.scale[i], m.q.log_scale[i]));
      if (h.sums()) c.total[at] = total[i];
      if (c.scale) c.scale[at] = f.scale[i];
    }
    copy_out(m.out, value_row, n, c.values, h.at(c.output, start), c.output.position);
    add_chunk(h, f, m.pairs, n, m.k.turned, m.v, m.faded, m.state);
  }
  if (piece.last < h.chunks()) return;
  unpack(h, m.state.memory, c.new_memory + index * c.features * c.values);
  if (h.sums()) std::memcpy(c.new_key_sum + index * c.features, m.state.key_sum, c.features * sizeof(Real));
  if (c.new_stabiliser) c.new_stabiliser[index] = m.state.stabiliser;
}
