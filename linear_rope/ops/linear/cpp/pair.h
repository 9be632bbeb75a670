// Decays of pairs of features beyond those of the head (ops/linear/stabiliser.py, pair_factors): factors of at most 1
// for each position and feature of a chunk, which sums that begin at the position or the chunk are the logarithms of.
//
//   inside a chunk   S_ij = q_i . (k_j each_(j+1) ... each_i), with keys that fade on as i goes on
//   the output       (q_i until_i) . memory,   memory <- until_last memory + (K left)^T (stay V)

struct Pairs {
  Real *each, *until, *left;  // (CHUNK x feature_row), of a position; of all up to it; of all after it
  void take(Arena& arena, long n) {
    for (Real** x : {&each, &until, &left}) *x = arena.take(n);
  }
};

INLINE void multiply(Real* x, const Real* by, long n) {
  for (long i = 0; i < n; i += LANES) store(x + i, load(x + i) * load(by + i));
}

// x (n rows) by factors, zeros below up to so many rows.
static void faded_rows(const Head& h, const Real* x, const Real* by, long n, long rows, Real* to) {
  for (long i = 0; i < rows * h.feature_row; i += h.feature_row)
    for (long m = 0; m < h.features; m += LANES)
      store(to + i + m, i < n * h.feature_row ? load(x + i + m) * load(by + i + m) : Vector{});
}

// A memory or its gradient by what each feature keeps.
static void fade(const Head& h, const Real* kept, Real* memory) {
  for (long d = 0; d < h.memory; d += h.features * PANEL)
    for (long m = 0; m < h.features; m++) scale(memory + d + m * PANEL, PANEL, kept[m]);
}

// From ln a (length x count) of pairs, or of all features together.
static void find_pairs(const Head& h, const Real* decay, long count, long start, long n, Pairs& to) {
  const long row = h.feature_row;
  decay += (h.index * h.call.length + start) * count;
  for (long i = 0; i < n; i++)
    for (long m = 0; m < h.features; m++) {
      const long at = i * row + m;
      to.each[at] = m < h.call.features ? decay[i * count + (count > 1 ? m / 2 : 0)] : 0;
      to.until[at] = to.each[at] + (i ? to.until[at - row] : 0);
    }
  for (long m = 0; m < h.features; m++) {
    Real sum = 0;
    for (long i = n - 1; i >= 0; i--) {
      to.left[i * row + m] = sum;
      sum += to.each[i * row + m];
    }
  }
  for (Real* x : {to.each, to.until, to.left})
    for (long i = 0; i < n * row; i += row)
      for (long m = 0; m < h.features; m += LANES) {
        const Vector log = load(x + i + m);
        store(x + i + m, log < all(sizeof(Real) > sizeof(float) ? -700 : -87) ? Vector{} : exponential(log));
      }
}

// The factors of a chunk, and those of the denominator's sum where it fades by itself.
static const Pairs& find_pairs(const Head& h, long start, long n, Pairs& pairs, Pairs& own) {
  const Call& c = h.call;
  find_pairs(h, c.pair_decay, c.features / 2, start, n, pairs);
  if (!c.denominator_decay) return pairs;
  find_pairs(h, c.denominator_decay, 1, start, n, own);
  return own;
}

// S_ij = q_i . faded k_j, zero elsewhere; and with of_S also grad_q_i += of_S_ij faded k_j.
static void pair_products(const Head& h, const Pairs& pairs, long n, const Real* q, const Real* k, Real* faded, Real* S,
                          const Real* of_S, Real* grad_q, long s_row) {
  const long row = h.feature_row;
  std::memset(S, 0, padded(n) * s_row * sizeof(Real));
  for (long i = 0; i < n; i++) {
    std::memcpy(faded + i * row, k + i * row, h.features * sizeof(Real));
    for (long j = 0; j <= i; j++) {
      if (j < i) multiply(faded + j * row, pairs.each + i * row, h.features);
      S[i * s_row + j] = dot(q + i * row, faded + j * row, h.features);
      if (of_S)
        for (long m = 0; m < h.features; m += LANES)
          store(grad_q + i * row + m, load(grad_q + i * row + m) + load(faded + j * row + m) * of_S[i * s_row + j]);
    }
  }
}

// grad_k_j += of_S_ij faded q_i.
static void pair_key_gradients(const Head& h, const Pairs& pairs, long n, const Real* q, Real* faded, const Real* of_S,
                               long s_row, Real* grad_k) {
  const long row = h.feature_row;
  for (long j = n - 1; j >= 0; j--) {
    std::memcpy(faded + j * row, q + j * row, h.features * sizeof(Real));
    for (long i = j; i < n; i++) {
      if (i > j) multiply(faded + i * row, pairs.each + (j + 1) * row, h.features);
      for (long m = 0; m < h.features; m += LANES)
        store(grad_k + j * row + m, load(grad_k + j * row + m) + load(faded + i * row + m) * of_S[i * s_row + j]);
    }
  }
}

// How many exponents a position has: one a pair, and one of a denominator that fades by itself.
INLINE long exponents(const Call& c) { return c.features / 2 + (c.denominator_decay ? 1 : 0); }

// Their gradients, `stride` apart, from vector times gradient of what the numerator and the denominator sum, if it does.
template <typename Number>
INLINE void put_pair_exponents(const Call& c, const Number* above, const Number* below, Number* to, long stride) {
  Number total = 0;
  for (long p = 0; p < c.features / 2; p++) {
    const Number own = below ? below[2 * p] + below[2 * p + 1] : 0;
    to[p * stride] = above[2 * p] + above[2 * p + 1] + (c.denominator_decay ? 0 : own);
    total += own;
  }
  if (c.denominator_decay) to[c.features / 2 * stride] = total;
}
