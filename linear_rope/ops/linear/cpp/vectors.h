// Vectors of 8 numbers, in the terms of GCC and Clang: any processor has them, whatever its instructions.

typedef Real Vector __attribute__((vector_size(LANES * sizeof(Real))));
typedef Real Unaligned __attribute__((vector_size(LANES * sizeof(Real)), aligned(sizeof(Real)), may_alias));
typedef std::conditional<sizeof(Real) == 4, int32_t, int64_t>::type Integer;
typedef Integer Integers __attribute__((vector_size(LANES * sizeof(Integer))));

INLINE Vector load(const Real* x) { return *reinterpret_cast<const Unaligned*>(x); }
INLINE void store(Real* x, Vector v) { *reinterpret_cast<Unaligned*>(x) = v; }
INLINE Vector all(Real x) { return Vector{x, x, x, x, x, x, x, x}; }  // not Vector{} + x, which would add
INLINE Vector larger(Vector a, Vector b) { return b > a ? b : a; }

INLINE Real sum(Vector v) {
  Real s = 0;
  for (long i = 0; i < LANES; i++) s += v[i];
  return s;
}

// In float about 2 units in the last place (polynomial of Cephes' expf), and e^-87 below -87.
INLINE Vector exponential(Vector x) {
  if (sizeof(Real) > sizeof(float)) {
    for (long i = 0; i < LANES; i++) x[i] = std::exp(x[i]);
    return x;
  }
  const Vector lowest = all(-87.3f);
  x = x < lowest ? lowest : x;
  const Real magic = 12582912;  // adding it rounds to an integer, in the lowest bits
  const Vector shifted = x * 1.44269504f + magic;
  const Vector n = shifted - magic;
  const Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Integers power = ((Integers)shifted - (Integers)all(magic) + 127) << 23;
  return p * (Vector)power;
}

// Pairs turned by (cosine, sine), or back.
template <bool BACK>
INLINE Vector turn(Vector x, Vector rotation) {
  const Vector cosine = __builtin_shufflevector(rotation, rotation, 0, 0, 2, 2, 4, 4, 6, 6);
  const Vector sine = __builtin_shufflevector(rotation, rotation, 1, 1, 3, 3, 5, 5, 7, 7);
  const Vector swapped = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
  const Vector sign = BACK ? Vector{1, -1, 1, -1, 1, -1, 1, -1} : Vector{-1, 1, -1, 1, -1, 1, -1, 1};
  return x * cosine + swapped * (sine * sign);
}

INLINE long padded(long n) { return (n + PANEL - 1) / PANEL * PANEL; }

INLINE void scale(Real* x, long n, Real by) {
  const Vector f = all(by);
  for (long i = 0; i < n; i += LANES) store(x + i, load(x + i) * f);
}

INLINE Real dot(const Real* a, const Real* b, long n) {
  Vector s0 = {}, s1 = {};
  for (long i = 0; i < n; i += PANEL) {
    s0 += load(a + i) * load(b + i);
    s1 += load(a + i + LANES) * load(b + i + LANES);
  }
  return sum(s0 + s1);
}
