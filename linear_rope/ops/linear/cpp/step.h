// One position after a state, in a single pass over the memory as it lies.

struct StepMemory {
  Side q, k;
  Real *work, *own_q, *own_k;
  StepMemory(const Head& h, Arena& arena) {
    const long features = PANEL * h.feature_row;
    for (Side* side : {&q, &k}) {
      side->input = arena.take(PANEL * h.width_row);
      side->mapped = arena.take(features);
      side->rotated = arena.take(h.call.q_rotation ? features : 0);
    }
    work = arena.take(features);
    own_q = arena.take(h.call.denominator_q.data ? features : 0);
    own_k = arena.take(h.call.denominator_q.data ? features : 0);
  }
};

// Columns d to d + WIDTH of memory and output. `from` may be null, for zeros.
template <long WIDTH>
INLINE void step_columns(const Head& h, const Real* from, const Real* keys, const Real* queries, const Real* v,
                         Real kept, Real enter, Real gain, Real* to, Real* out) {
  constexpr long VECTORS = WIDTH / LANES;
  Vector values[VECTORS], sums[VECTORS] = {};
  for (long i = 0; i < VECTORS; i++) values[i] = load(v + i * LANES) * enter;
  for (long m = 0; m < h.call.features; m++)
    for (long i = 0; i < VECTORS; i++) {
      const long at = m * h.call.values + i * LANES;
      const Vector now = (from ? load(from + at) * kept : Vector{}) + values[i] * keys[m];
      store(to + at, now);
      sums[i] += now * queries[m];
    }
  for (long i = 0; i < VECTORS; i++) store(out + i * LANES, sums[i] * gain);
}

static void step(Call& c, const Projection& p, long index) {
  const Head h(c, index);
  Arena arena(measured<StepMemory>(h));
  StepMemory m(h, arena);
  load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, 0, 1, 1, m.q, m.work);
  load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, 0, 1, 1, m.k, m.work);
  Factors f;
  find_factors(h, 0, 1, m.k.log_scale, h.has_scale ? (c.stabiliser ? c.stabiliser[index] : SMALLEST) : 0, f);
  const Real kept = f.kept[0], enter = f.enter[0];
  Real total = 0;
  if (h.sums()) {
    const Real* queries = summed(h, c.denominator_q, m.q, 0, 1, m.own_q);
    const Real* keys = summed(h, c.denominator_k, m.k, 0, 1, m.own_k);
    for (long i = 0; i < c.features; i++) {
      const Real before = c.key_sum ? c.key_sum[index * c.features + i] * kept : 0;
      total += queries[i] * (c.new_key_sum[index * c.features + i] = before + keys[i] * enter);
    }
    if (c.total) c.total[index] = total;
  }
  if (c.scale) c.scale[index] = f.scale[0];
  if (c.new_stabiliser) c.new_stabiliser[index] = f.end;
  const Real gain = gain_of(h, total, f.scale[0], m.q.log_scale[0]);
  const long size = c.features * c.values;
  const Real *from = c.memory ? c.memory + index * size : nullptr, *v = h.at(c.v, 0);
  Real *to = c.new_memory + index * size, *out = h.at(c.output, 0);
  long d = 0;
  for (; d + 4 * LANES <= c.values; d += 4 * LANES)
    step_columns<4 * LANES>(h, from ? from + d : nullptr, m.k.turned, m.q.turned, v + d, kept, enter, gain, to + d, out + d);
  for (; d + 2 * LANES <= c.values; d += 2 * LANES)
    step_columns<2 * LANES>(h, from ? from + d : nullptr, m.k.turned, m.q.turned, v + d, kept, enter, gain, to + d, out + d);
  for (; d < c.values; d++) {
    Real sum = 0;
    for (long i = 0; i < c.features; i++) {
      Real& now = to[i * c.values + d];
      now = (from ? from[i * c.values + d] * kept : 0) + v[d] * enter * m.k.turned[i];
      sum += now * m.q.turned[i];
    }
    out[d] = sum * gain;
  }
}
