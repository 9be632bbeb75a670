// Causal linear attention (RoFormer, arXiv 2104.09864, eq. 19) with decay, on a CPU: forward and backward.
//
// A task is one sequence of one head. It goes through the sequence in chunks of 32 positions, and all that a chunk
// needs fits the second-level cache. With M features, k the mapped and rotated keys, v the values and factors <= 1,
//
//   inside a chunk   S_ij = (q_i . k_j) P_ij,  j <= i;      P_ij = enter_j * product of kept_t, j < t <= i
//   the output       o_i  = (read_i q_i . memory + S_i V) / (q'_i . z_i);     read_i = product of kept_t, t <= i
//   the state        memory <- read_last memory + K^T (stay V);               stay_j = P_last,j
//   the denominator  z_i = kept_i z_(i-1) + enter_i k'_i
//
// enter and kept are what functional/terms.py calls exp(g_j - c_j) and exp(c_(j-1) + ln a_j - c_j). The backward pass
// goes through the chunks from the last to the first, and makes features and states again from a state that the
// forward pass saved every eighth chunk.
//
// Matrices have rows of a multiple of 16 numbers, filled up with zeros, and 16 more between rows: rows a power of two
// apart would share the same few places of the first-level cache. "Panels" are 16 columns after another.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>
#ifdef LINEAR_ROPE_THREADS
#include <thread>
#endif

namespace {

constexpr long CHUNK = 32;
constexpr long SAVED = 8;  // chunks between saved states
constexpr long PANEL = 16;
constexpr long LANES = 8;
constexpr long TASKS = 4;  // that fewer sequences are split into, whatever the number of threads
constexpr float LARGEST_LOG_SCALE = 60;    // of functional/terms.py
constexpr float SMALLEST_EXPONENT = -30;  // of features/elementwise.py

#define INLINE static inline __attribute__((always_inline))

enum Formula { GIVEN, ELU, RELU, FAVOR };
enum Denominator { UNROTATED, ROTATED, NONE };

// In float, or double.
template <typename Real>
struct Kernel {
static constexpr double SMALLEST = std::numeric_limits<Real>::lowest();  // the scale of what is not there

// A tensor (batch, heads, length, width) whose last axis is contiguous.
struct Rows {
  Real* data;
  long batch, head, position;
};

// native.py has the same fields in the same order.
struct Call {
  long size;  // of this struct, to notice that the two differ
  long batch, heads, length, width, values, features;
  long formula, hyperbolic, paired, denominator;
  double eps;
  Rows q, k, v, denominator_q, denominator_k;
  const double *query_scale, *key_scale, *log_decay;  // (batch, heads, length)
  const uint8_t* padding;                             // (batch, length)
  const Real *q_rotation, *k_rotation;               // (batch or 1, length, features): cosine, sine, ...
  long q_rotation_batch, k_rotation_batch;            // strides; 0 for one of all
  const Real *memory, *normaliser;                   // (batch, heads, features, values), (batch, heads, features)
  const double* stabiliser;                           // (batch, heads)
  const Real* projection;                            // (rows, width)
  // Results of the forward pass.
  Rows output;
  Real *total, *new_memory, *new_normaliser, *saved;
  double *scale, *new_stabiliser;
  // The backward pass.
  Rows grad_output;
  const Real *grad_total, *grad_new_memory, *grad_new_normaliser;
  Rows grad_q, grad_k, grad_v, grad_denominator_q, grad_denominator_k;
  Real *of_q, *of_k;  // (batch, heads, length): gradients of the exponents
  Real *grad_memory, *grad_normaliser;
  // How to run `function(data)` on so many threads: GOMP_parallel of the OpenMP that PyTorch uses, or null for one.
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  long threads;
};

typedef Real Vector __attribute__((vector_size(LANES * sizeof(Real))));
typedef Real Unaligned __attribute__((vector_size(LANES * sizeof(Real)), aligned(sizeof(Real)), may_alias));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t))));

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
  if constexpr (sizeof(Real) > sizeof(float)) {
    for (long i = 0; i < LANES; i++) x[i] = std::exp(x[i]);
    return x;
  } else {
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

// C[R x 16] (+)= A[R x K] B[K x 16]
template <int R>
INLINE void tile(long K, const Real* A, long row, long column, const Real* B, long b_row, Real* C, long c_row,
                 bool add) {
  Vector left[R], right[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    left[r] = add ? load(C + r * c_row) : Vector{};
    right[r] = add ? load(C + r * c_row + LANES) : Vector{};
  }
  for (long k = 0; k < K; k++) {
    const Vector b0 = load(B), b1 = load(B + LANES);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Vector a = all(A[r * row]);
      left[r] += a * b0;
      right[r] += a * b1;
    }
    A += column;
    B += b_row;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    store(C + r * c_row, left[r]);
    store(C + r * c_row + LANES, right[r]);
  }
}

// A matrix for products: element (i, k) is at data[i * row + k * column].
struct Left {
  const Real* data;
  long row, column;
};
// Columns in panels: element (k, j) is at data[k * row + j / 16 * panel + j % 16]. Row-major is panel = 16.
struct Right {
  const Real* data;
  long row, panel;
};
struct Out {
  Real* data;
  long row, panel;
};

// All rows of 16 columns.
INLINE void strip(long rows, long K, Left a, const Real* B, long b_row, Real* C, long c_row, bool add) {
  long i = 0;
  for (; i + 16 <= rows; i += 16) {
    const Real* A = a.data + i * a.row;
    tile<6>(K, A, a.row, a.column, B, b_row, C + i * c_row, c_row, add);
    tile<5>(K, A + 6 * a.row, a.row, a.column, B, b_row, C + (i + 6) * c_row, c_row, add);
    tile<5>(K, A + 11 * a.row, a.row, a.column, B, b_row, C + (i + 11) * c_row, c_row, add);
  }
  for (; i + 4 <= rows; i += 4) tile<4>(K, a.data + i * a.row, a.row, a.column, B, b_row, C + i * c_row, c_row, add);
  for (; i < rows; i++) tile<1>(K, a.data + i * a.row, a.row, a.column, B, b_row, C + i * c_row, c_row, add);
}

// c (+)= a b; columns is a multiple of 16.
static void product(long rows, long columns, long K, Left a, Right b, Out c, bool add) {
  for (long j = 0; j < columns / PANEL; j++)
    strip(rows, K, a, b.data + j * b.panel, b.row, c.data + j * c.panel, c.row, add);
}

// The lower triangle of a b, (rows x rows), of 16 or 32; panels of the result above the diagonal are not written.
static void lower_product(long rows, long K, Left a, Right b, Real* c, long c_row) {
  for (long j = 0; j < rows; j += PANEL)
    strip(rows - j, K, {a.data + j * a.row, a.row, a.column}, b.data + j / PANEL * b.panel, b.row, c + j * c_row + j,
          c_row, false);
}

// c += lower b, or c += lower^T b, with `lower` (rows x rows), of which only the lower panels are read.
static void lower_times(long rows, long columns, const Real* lower, long l_row, Right b, Real* c, long c_row) {
  for (long j = 0; j < columns / PANEL; j++)
    for (long i = 0; i < rows; i += PANEL)
      strip(PANEL, i + PANEL, {lower + i * l_row, l_row, 1}, b.data + j * b.panel, b.row,
            c + i * c_row + j * PANEL, c_row, true);
}
static void lower_transposed_times(long rows, long columns, const Real* lower, long l_row, Right b, Real* c, long c_row) {
  for (long j = 0; j < columns / PANEL; j++)
    for (long i = 0; i < rows; i += PANEL)
      strip(PANEL, rows - i, {lower + i * l_row + i, 1, l_row}, b.data + j * b.panel + i * b.row, b.row,
            c + i * c_row + j * PANEL, c_row, true);
}

INLINE void transpose_8x8(const Real* from, long from_row, Real* to, long to_row) {
  Vector r[8], t[8];
  for (int i = 0; i < 8; i++) r[i] = load(from + i * from_row);
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 1] = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    r[i + 2] = __builtin_shufflevector(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 3] = __builtin_shufflevector(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; i++) {
    store(to + i * to_row, __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store(to + (i + 4) * to_row, __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

// Rows (a multiple of 16) of `columns` numbers become panels: the transposed matrix, (columns x rows).
static void to_panels(long rows, long columns, const Real* from, long from_row, Real* to) {
  for (long i = 0; i < rows; i += 8)
    for (long j = 0; j < columns; j += 8)
      transpose_8x8(from + i * from_row + j, from_row, to + i / PANEL * columns * PANEL + j * PANEL + i % PANEL, PANEL);
}

// Panels of (rows x columns) become the transposed matrix, columns rows of `rows` numbers.
static void from_panels(long rows, long columns, const Real* from, Real* to, long to_row) {
  for (long j = 0; j < columns; j += 8)
    for (long i = 0; i < rows; i += 8)
      transpose_8x8(from + j / PANEL * rows * PANEL + i * PANEL + j % PANEL, PANEL, to + j * to_row + i, to_row);
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

// n rows of `width` numbers into a chunk's matrix; zeros to their right, and below to a multiple of 16 rows.
static void copy_in(const Real* from, long from_row, long n, long width, Real* to, long to_row, long to_width) {
  for (long i = 0; i < padded(n); i++) {
    const long there = i < n ? width : 0;
    if (there) std::memcpy(to + i * to_row, from + i * from_row, there * sizeof(Real));
    std::memset(to + i * to_row + there, 0, (to_width - there) * sizeof(Real));
  }
}

static void copy_out(const Real* from, long from_row, long n, long width, Real* to, long to_row) {
  for (long i = 0; i < n; i++) std::memcpy(to + i * to_row, from + i * from_row, width * sizeof(Real));
}

// Memory of one task, handed out piece by piece; measured first, with no memory at all.
class Arena {
 public:
  explicit Arena(Real* start) : start_(start) {}
  Real* take(long n) {
    Real* piece = start_ ? start_ + used_ : nullptr;
    used_ += padded(n) + PANEL;
    return piece;
  }
  long used() const { return used_; }

 private:
  Real* start_;
  long used_ = 0;
};

// At least n floats, aligned to a cache line; a thread keeps them for its next call, unless they are many.
struct Memory {
  static constexpr long KEPT = 1 << 22;
  Real* data;
  std::unique_ptr<Real[]> own;
  explicit Memory(long n) {
    static thread_local std::unique_ptr<Real[]> kept;
    static thread_local long size = 0;
    n += PANEL;
    if (n > KEPT) {
      own.reset(new Real[n]);
    } else if (size < n) {
      kept.reset(new Real[n]);
      size = n;
    }
    Real* start = own ? own.get() : kept.get();
    data = reinterpret_cast<Real*>((reinterpret_cast<uintptr_t>(start) + 63) & ~uintptr_t{63});
  }
};

// The projection of FAVOR+, of which both passes need another layout.
struct Projection {
  long rows = 0, padded_rows = 0, padded_width = 0;
  std::vector<Real> columns;  // panels of the transposed matrix, (width x rows)
  std::vector<Real> by_rows;  // panels of the matrix, (rows x width)

  explicit Projection(const Call& call) {
    if (call.formula != FAVOR) return;
    rows = call.hyperbolic || call.paired ? call.features / 2 : call.features;
    padded_rows = padded(rows);
    padded_width = padded(call.width);
    columns.resize(padded_rows * padded_width);
    by_rows.resize(padded_rows * padded_width);
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < call.width; j++) {
        const Real x = call.projection[i * call.width + j];
        columns[i / PANEL * padded_width * PANEL + j * PANEL + i % PANEL] = x;
        by_rows[j / PANEL * padded_rows * PANEL + i * PANEL + j % PANEL] = x;
      }
  }
};

static long chunks(const Call& call) { return (call.length + CHUNK - 1) / CHUNK; }

// One sequence of one head, with its sizes.
struct Head {
  const Call& call;
  long index, batch, head;  // index = batch * heads + head
  long features, width, values;
  long feature_row, width_row, value_row;
  long memory, state;  // elements of a memory in panels, and of all of a state
  bool has_scale, has_factors;

  Head(const Call& c, long i) : call(c), index(i), batch(i / c.heads), head(i % c.heads) {
    features = padded(c.features);
    width = padded(c.width);
    values = padded(c.values);
    feature_row = features + PANEL;
    width_row = width + PANEL;
    value_row = values + PANEL;
    memory = features * values;
    state = memory + features + PANEL;
    has_scale = c.formula == FAVOR || c.key_scale;
    has_factors = has_scale || c.log_decay || c.padding;
  }
  const Real* at(const Rows& x, long position) const {
    return x.data + batch * x.batch + head * x.head + position * x.position;
  }
  Real* at(Rows& x, long position) const {
    return x.data + batch * x.batch + head * x.head + position * x.position;
  }
  const Real* rotation(const Real* table, long stride, long position) const {
    return table ? table + batch * stride + position * call.features : nullptr;
  }
  bool is_padding(long position) const { return call.padding && call.padding[batch * call.length + position]; }
  long chunks() const { return Kernel::chunks(call); }
  long rows(long chunk) const { return std::min(CHUNK, call.length - chunk * CHUNK); }
  bool sums() const { return call.denominator != NONE; }
};

// A state: memory in panels (M x Dv), normaliser (M), stabiliser.
struct State {
  Real *memory, *normaliser;
  double stabiliser;
  void from(const Real* saved, const Head& h) {
    std::memcpy(memory, saved, h.memory * sizeof(Real));
    std::memcpy(normaliser, saved + h.memory, h.features * sizeof(Real));
    std::memcpy(&stabiliser, saved + h.memory + h.features, sizeof(double));
  }
  void to(Real* saved, const Head& h) const {
    std::memcpy(saved, memory, h.memory * sizeof(Real));
    std::memcpy(saved + h.memory, normaliser, h.features * sizeof(Real));
    std::memcpy(saved + h.memory + h.features, &stabiliser, sizeof(double));
  }
};

static void pack(const Head& h, const Real* from, Real* panels) {
  std::memset(panels, 0, h.memory * sizeof(Real));
  if (!from) return;
  const long values = h.call.values;
  for (long m = 0; m < h.call.features; m++)
    for (long d = 0; d < values; d += PANEL)
      std::memcpy(panels + d * h.features + m * PANEL, from + m * values + d,
                  std::min(PANEL, values - d) * sizeof(Real));
}

static void unpack(const Head& h, const Real* panels, Real* to) {
  const long values = h.call.values;
  for (long m = 0; m < h.call.features; m++)
    for (long d = 0; d < values; d += PANEL)
      std::memcpy(to + m * values + d, panels + d * h.features + m * PANEL,
                  std::min(PANEL, values - d) * sizeof(Real));
}

static void pack_vector(const Head& h, const Real* from, Real* to) {
  std::memset(to, 0, h.features * sizeof(Real));
  if (from) std::memcpy(to, from, h.call.features * sizeof(Real));
}

static State first_state(const Head& h, Real* memory, Real* normaliser) {
  const Call& c = h.call;
  pack(h, c.memory ? c.memory + h.index * c.features * c.values : nullptr, memory);
  pack_vector(h, c.normaliser ? c.normaliser + h.index * c.features : nullptr, normaliser);
  return {memory, normaliser, h.has_scale ? (c.stabiliser ? c.stabiliser[h.index] : SMALLEST) : 0};
}

// Feature maps --------------------------------------------------------------------------------------------------------

// Features of n rows of x into u, with zeros to their right, and below to a multiple of 16 rows, and the
// logarithms of their scales, if it has any. `work` holds CHUNK x features.
static void map_rows(const Head& h, const Projection& p, long n, const Real* x, Real* u, double* log_scale, Real* work) {
  const Call& c = h.call;
  const long row = h.feature_row, x_row = h.width_row;
  if (c.formula == FAVOR) {
    const bool twice = c.hyperbolic || c.paired;
    Real* projected = twice ? work : u;
    product(n, p.padded_rows, h.width, {x, x_row, 1}, {p.columns.data(), PANEL, p.padded_width * PANEL},
            {projected, row, PANEL}, false);
    const Real eps = Real(c.eps);
    const double constant = std::log(double(c.features)) / 2, half = 0.5 / std::sqrt(double(c.width));
    for (long i = 0; i < n; i++) {
      Real *from = projected + i * row, *to = u + i * row;
      Real largest = from[0];
      Vector most = all(largest), least = all(largest);
      long j = 0;
      for (; j + LANES <= p.rows; j += LANES) {
        const Vector y = load(from + j);
        most = larger(most, y);
        least = y < least ? y : least;
      }
      Real high = most[0], low = least[0];
      for (long r = 1; r < LANES; r++) high = std::max(high, most[r]), low = std::min(low, least[r]);
      for (; j < p.rows; j++) high = std::max(high, from[j]), low = std::min(low, from[j]);
      largest = c.hyperbolic ? std::max(high, -low) : high;
      const Vector top = all(largest);
      if (c.hyperbolic) {
        for (long m = 0; m < p.padded_rows; m += LANES) {  // `to` has room for the zeros of both halves
          const Vector y = load(from + m);
          store(from + m, exponential(y - top) + eps);
          Vector minus = exponential(-y - top) + eps;
          for (long r = 0; r < LANES && m + r < p.rows; r++) to[p.rows + m + r] = minus[r];
        }
        std::memcpy(to, from, p.rows * sizeof(Real));
      } else {
        for (long m = 0; m < p.padded_rows; m += LANES) store(from + m, exponential(load(from + m) - top) + eps);
        if (c.paired)
          for (long m = 0; m < p.rows; m++) to[2 * m] = to[2 * m + 1] = from[m];
      }
      std::memset(to + c.features, 0, (h.features - c.features) * sizeof(Real));
      log_scale[i] = double(largest) - double(dot(x + i * x_row, x + i * x_row, h.width)) * half - constant;
    }
  } else {
    const Real eps = Real(c.eps);
    for (long i = 0; i < n; i++) {
      const Real* from = x + i * x_row;
      Real *to = u + i * row, *single = c.paired ? work : to;
      if (c.formula == GIVEN) {
        std::memcpy(to, from, h.width * sizeof(Real));
      } else {
        for (long m = 0; m < h.width; m += LANES) {
          const Vector y = load(from + m), positive = y < 0 ? Vector{} : y;
          if (c.formula == RELU) {
            store(single + m, positive + eps);
          } else {
            const Vector lowest = all(SMALLEST_EXPONENT), negative = y < 0 ? y : Vector{};
            store(single + m, exponential(negative < lowest ? lowest : negative) + positive);
          }
        }
        if (c.paired)
          for (long m = 0; m < c.width; m++) to[2 * m] = to[2 * m + 1] = single[m];
      }
      std::memset(to + c.features, 0, (h.features - c.features) * sizeof(Real));
    }
  }
  std::memset(u + n * row, 0, (padded(n) - n) * row * sizeof(Real));
}

// From the gradient of features (overwritten) to that of x, n rows of `width` numbers. `work` holds CHUNK x features.
static void map_gradient(const Head& h, const Projection& p, long n, const Real* x, const Real* u, Real* grad, Real* out,
                  long out_row, Real* work, Real* wide) {
  const Call& c = h.call;
  const long row = h.feature_row, x_row = h.width_row;
  if (c.formula == GIVEN) {
    copy_out(grad, row, n, c.width, out, out_row);
    return;
  }
  if (c.formula != FAVOR) {
    for (long i = 0; i < n; i++) {
      const Real *from = x + i * x_row, *values = u + i * row;
      Real *g = grad + i * row, *to = out + i * out_row;
      const long step = c.paired ? 2 : 1;
      if (c.paired)
        for (long m = 0; m < c.width; m++) g[m] = g[2 * m] + g[2 * m + 1];
      if (c.formula == ELU)
        for (long m = 0; m < c.width; m++)
          to[m] = from[m] < SMALLEST_EXPONENT ? 0 : g[m] * std::min(values[step * m], Real(1));
      else
        for (long m = 0; m < c.width; m++) to[m] = from[m] > 0 ? g[m] : 0;
    }
    return;
  }
  const Real eps = Real(c.eps), by = Real(1 / std::sqrt(double(c.width)));
  const bool twice = c.hyperbolic || c.paired;
  Real totals[CHUNK] = {};
  Real* projected = twice ? work : grad;
  for (long i = 0; i < n; i++) {
    const Real* values = u + i * row;
    Real *g = grad + i * row, *to = projected + i * row;
    Vector every = {}, total = {}, most = {};
    for (long m = 0; m < h.features; m += LANES) {
      const Vector of = load(g + m), value = load(values + m);
      const Vector exact = of * (value - eps);
      store(g + m, exact);
      every += of;
      total += exact;
      most = larger(most, value);
    }
    Real largest = most[0];
    for (long r = 1; r < LANES; r++) largest = std::max(largest, most[r]);
    // What is added to every feature, eps, does not move with the largest projection as the others do.
    const Real* found = std::find(values, values + c.features - 1, largest);
    const long at = found - values;
    const Real of_eps = eps * sum(every);
    g[at] += of_eps;
    totals[i] = -by * (sum(total) + of_eps);
    if (c.hyperbolic)
      for (long m = 0; m < p.rows; m++) to[m] = g[m] - g[p.rows + m];
    if (c.paired)
      for (long m = 0; m < p.rows; m++) to[m] = g[2 * m] + g[2 * m + 1];
    if (twice) std::memset(to + p.rows, 0, (p.padded_rows - p.rows) * sizeof(Real));
  }
  for (long i = 0; i < n; i++)
    for (long d = 0; d < h.width; d += LANES) store(wide + i * x_row + d, load(x + i * x_row + d) * totals[i]);
  product(n, h.width, p.padded_rows, {projected, row, 1}, {p.by_rows.data(), PANEL, p.padded_rows * PANEL}, {wide, x_row, PANEL},
          true);
  copy_out(wide, x_row, n, c.width, out, out_row);
}

// Factors -------------------------------------------------------------------------------------------------------------

struct Factors {
  Real kept[CHUNK], enter[CHUNK], read[CHUNK], stay[CHUNK];
  double scale[CHUNK];  // c_i
  double end;           // c after the chunk
  Real last;           // what is left of the state after the chunk
};

// Of n positions from `start`, after a state with stabiliser `before`; `log_scale` are those of the keys.
static void find_factors(const Head& h, long start, long n, const double* log_scale, double before, Factors& f) {
  const Call& c = h.call;
  const double* decay = c.log_decay ? c.log_decay + h.index * c.length + start : nullptr;
  double now = before;
  Real read = 1;
  for (long i = 0; i < n; i++) {
    const bool hidden = h.is_padding(start + i);
    const double fades = decay ? decay[i] : 0;
    if (h.has_scale) {
      const double faded = now + fades, key = hidden ? SMALLEST : log_scale[i];
      now = std::max(faded, key);
      f.kept[i] = faded == now ? 1 : Real(std::exp(faded - now));
      f.enter[i] = hidden ? 0 : key == now ? 1 : Real(std::exp(key - now));
    } else {
      f.kept[i] = fades == 0 ? 1 : Real(std::exp(fades));
      f.enter[i] = !hidden;
    }
    f.scale[i] = now;
    f.read[i] = read *= f.kept[i];
  }
  f.last = read;
  f.end = now;
  Real stay = 1;
  for (long i = n - 1; i >= 0; i--) {
    f.stay[i] = stay * f.enter[i];
    stay *= f.kept[i];
  }
}

// What pairs (i, j <= i) of n positions are multiplied by, zero elsewhere.
static void pair_factors(const Factors& f, long n, Real* P, long row) {
  std::memset(P, 0, padded(n) * row * sizeof(Real));
  for (long i = 0; i < n; i++) {
    if (i)
      for (long j = 0; j < i; j += LANES) store(P + i * row + j, load(P + (i - 1) * row + j) * f.kept[i]);
    P[i * row + i] = f.enter[i];
  }
}

// S (.)= P below and on the diagonal; zero above it, in the panels that the diagonal crosses.
static void weigh(long rows, Real* S, const Real* P, long row) {
  for (long i = 0; i < rows; i++) {
    const long end = (i / PANEL + 1) * PANEL;
    for (long j = 0; j <= i; j += LANES) store(S + i * row + j, load(S + i * row + j) * load(P + i * row + j));
    for (long j = i + 1; j < end; j++) S[i * row + j] = 0;
  }
}

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

static void load_side(const Head& h, const Projection& p, const Rows& x, const double* given_scale, const Real* table,
               long table_batch, bool keys, long start, long n, Side& side, Real* work) {
  const Call& c = h.call;
  copy_in(h.at(x, start), x.position, n, c.width, side.input, h.width_row, h.width);
  map_rows(h, p, n, side.input, side.mapped, side.log_scale, work);
  if (given_scale) std::memcpy(side.log_scale, given_scale + h.index * c.length + start, n * sizeof(double));
  if (keys && c.padding)
    for (long i = 0; i < n; i++)
      if (h.is_padding(start + i)) std::memset(side.mapped + i * h.feature_row, 0, h.features * sizeof(Real));
  const Real* rotation = h.rotation(table, table_batch, start);
  side.turned = rotation ? side.rotated : side.mapped;
  if (!rotation) return;
  for (long i = 0; i < n; i++)
    turn_row<false>(side.rotated + i * h.feature_row, side.mapped + i * h.feature_row, rotation + i * c.features, h);
  std::memset(side.rotated + n * h.feature_row, 0, (padded(n) - n) * h.feature_row * sizeof(Real));
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

// Forward -------------------------------------------------------------------------------------------------------------

struct ForwardMemory {
  Side q, k;
  Real *v, *out, *panels, *S, *P, *work, *own_q, *own_k;
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
    state.memory = arena.take(h.memory);
    state.normaliser = arena.take(h.features);
  }
};

// The state after n positions whose keys and values are loaded; `v` is overwritten.
static void add_chunk(const Head& h, const Factors& f, long n, const Real* keys, Real* v, State& state) {
  if (h.has_factors) {
    for (long i = 0; i < n; i++) scale(v + i * h.value_row, h.values, f.stay[i]);
    if (f.last != 1) scale(state.memory, h.memory, f.last);
  }
  product(h.features, h.values, n, {keys, 1, h.feature_row}, {v, h.value_row, PANEL},
          {state.memory, PANEL, h.features * PANEL}, true);
  state.stabiliser = f.end;
}

INLINE void add_to_normaliser(const Head& h, Real* z, const Real* key, Real kept, Real enter) {
  for (long m = 0; m < h.features; m += LANES) store(z + m, load(z + m) * kept + load(key + m) * enter);
}

// Some chunks of one sequence, and what passes between such pieces: in a forward pass the state before the first
// chunk, in a backward pass the gradient of the state after the last one.
struct Piece {
  long index, first, last;
  Real* passed;
};

static void forward(Call& c, const Projection& p, const Piece& piece) {
  const long index = piece.index;
  const Head h(c, index);
  Arena measure(nullptr);
  ForwardMemory(h, measure);
  Memory memory(measure.used());
  Arena arena(memory.data);
  ForwardMemory m(h, arena);
  m.state.from(piece.passed, h);
  const long row = h.feature_row, value_row = h.value_row, pair_row = CHUNK + PANEL;
  Factors f;
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), rows = padded(n);
    if (c.saved && chunk % SAVED == 0)
      m.state.to(c.saved + (chunk / SAVED * c.batch * c.heads + index) * h.state, h);
    load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, m.q, m.work);
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, m.k, m.work);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, value_row, h.values);
    find_factors(h, start, n, m.k.log_scale, m.state.stabiliser, f);
    Real total[CHUNK] = {};
    if (h.sums()) {
      const Real* queries = summed(h, c.denominator_q, m.q, start, n, m.own_q);
      const Real* keys = summed(h, c.denominator_k, m.k, start, n, m.own_k);
      Real* z = m.state.normaliser;
      for (long i = 0; i < n; i++) {
        const Vector kept = all(f.kept[i]), enter = all(f.enter[i]);
        Vector s0 = {}, s1 = {};
        for (long j = 0; j < h.features; j += PANEL) {
          const Vector z0 = load(z + j) * kept + load(keys + i * row + j) * enter;
          const Vector z1 = load(z + j + LANES) * kept + load(keys + i * row + j + LANES) * enter;
          store(z + j, z0);
          store(z + j + LANES, z1);
          s0 += load(queries + i * row + j) * z0;
          s1 += load(queries + i * row + j + LANES) * z1;
        }
        total[i] = sum(s0 + s1);
      }
    }
    to_panels(rows, h.features, m.k.turned, row, m.panels);
    lower_product(rows, h.features, {m.q.turned, row, 1}, {m.panels, PANEL, h.features * PANEL}, m.S, pair_row);
    pair_factors(f, n, m.P, pair_row);
    weigh(rows, m.S, m.P, pair_row);
    product(rows, h.values, h.features, {m.q.turned, row, 1}, {m.state.memory, PANEL, h.features * PANEL},
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
    add_chunk(h, f, n, m.k.turned, m.v, m.state);
  }
  if (piece.last < h.chunks()) return;
  unpack(h, m.state.memory, c.new_memory + index * c.features * c.values);
  if (h.sums()) std::memcpy(c.new_normaliser + index * c.features, m.state.normaliser, c.features * sizeof(Real));
  if (c.new_stabiliser) c.new_stabiliser[index] = m.state.stabiliser;
}

// Backward ------------------------------------------------------------------------------------------------------------

struct BackwardMemory {
  Side q, k[SAVED];
  Real *v, *grad_v, *of_out, *of_read, *grad_q, *grad_k, *panels, *v_panels, *S, *of_S, *P, *work, *wide, *own_q, *own_k;
  Real *G, *G_rows, *memory_rows, *z, *of_z;
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
  }
};

// The state before each chunk of a stretch, and its mapped keys, from the state that was saved before the first.
static void remake_states(Call& c, const Projection& p, const Head& h, BackwardMemory& m, long first, long last) {
  m.states[0].from(c.saved + (first / SAVED * c.batch * c.heads + h.index) * h.state, h);
  Factors f;
  for (long chunk = first; chunk < last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk), i = chunk - first;
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, m.k[i], m.work);
    if (chunk + 1 == last) break;
    State& next = m.states[i + 1];
    std::memcpy(next.memory, m.states[i].memory, h.memory * sizeof(Real));
    std::memcpy(next.normaliser, m.states[i].normaliser, h.features * sizeof(Real));
    find_factors(h, start, n, m.k[i].log_scale, m.states[i].stabiliser, f);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, h.value_row, h.values);
    if (h.sums()) {
      const Real* keys = summed(h, c.denominator_k, m.k[i], start, n, m.own_k);
      for (long r = 0; r < n; r++)
        add_to_normaliser(h, next.normaliser, keys + r * h.feature_row, f.kept[r], f.enter[r]);
    }
    add_chunk(h, f, n, m.k[i].turned, m.v, next);
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
  load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, m.q, m.work);
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

  to_panels(rows, h.features, keys.turned, row, m.panels);
  to_panels(rows, h.values, m.v, value_row, m.v_panels);
  lower_product(rows, h.features, {m.q.turned, row, 1}, {m.panels, PANEL, h.features * PANEL}, m.S, pair_row);
  lower_product(rows, h.values, {m.of_out, value_row, 1}, {m.v_panels, PANEL, h.values * PANEL}, m.of_S, pair_row);
  pair_factors(f, n, m.P, pair_row);
  weigh(rows, m.S, m.P, pair_row);
  weigh(rows, m.of_S, m.P, pair_row);

  // grad_q = of_S K + of_read memory^T
  from_panels(h.features, h.values, state.memory, m.memory_rows, row);
  product(rows, h.features, h.values, {m.of_read, value_row, 1}, {m.memory_rows, row, PANEL}, {m.grad_q, row, PANEL},
          false);
  lower_times(rows, h.features, m.of_S, pair_row, {keys.turned, row, PANEL}, m.grad_q, row);
  // grad_v = stay (K G) + S^T of_out
  product(rows, h.values, h.features, {keys.turned, row, 1}, {m.G, PANEL, h.features * PANEL},
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
  lower_transposed_times(rows, h.features, m.of_S, pair_row, {m.q.turned, row, PANEL}, m.grad_k, row);
  // G <- last G + Q^T of_read
  if (f.last != 1) scale(m.G, h.memory, f.last);
  product(h.features, h.values, n, {m.q.turned, 1, row}, {m.of_read, value_row, PANEL},
          {m.G, PANEL, h.features * PANEL}, true);

  const Real *sum_q = nullptr, *sum_k = nullptr;
  if (h.sums()) {
    sum_q = summed(h, c.denominator_q, m.q, start, n, m.own_q);
    sum_k = summed(h, c.denominator_k, keys, start, n, m.own_k);
    std::memcpy(m.z, state.normaliser, h.features * sizeof(Real));
  }
  const Real* q_rotation = h.rotation(c.q_rotation, c.q_rotation_batch, start);
  const bool own = c.denominator_q.data;
  for (long r = 0; r < n; r++) {
    if (h.sums()) add_to_normaliser(h, m.z, sum_k + r * row, f.kept[r], f.enter[r]);
    Real* grad = m.grad_q + r * row;
    Real* to = own ? h.at(c.grad_denominator_q, start + r) : nullptr;
    finish_row(h, grad, m.z, of_total[r], q_rotation ? q_rotation + r * c.features : nullptr, to);
    if (c.of_q) c.of_q[at + r] = dot(grad, m.q.mapped + r * row, h.features) + (own ? of_total[r] * dot(m.z, sum_q + r * row, h.features) : 0);
  }
  for (long r = n - 1; r >= 0; r--) {
    if (h.sums()) add_to_normaliser(h, m.of_z, sum_q + r * row, 1, of_total[r]);
    Real* grad = m.grad_k + r * row;
    Real* to = own ? h.at(c.grad_denominator_k, start + r) : nullptr;
    finish_row(h, grad, m.of_z, f.enter[r], rotation ? rotation + r * c.features : nullptr, to);
    if (c.of_k) c.of_k[at + r] = dot(grad, keys.mapped + r * row, h.features) + (own ? f.enter[r] * dot(m.of_z, sum_k + r * row, h.features) : 0);
    if (h.sums() && f.kept[r] != 1) scale(m.of_z, h.features, f.kept[r]);
  }
  map_gradient(h, p, n, m.q.input, m.q.mapped, m.grad_q, h.at(c.grad_q, start), c.grad_q.position, m.work, m.wide);
  map_gradient(h, p, n, keys.input, keys.mapped, m.grad_k, h.at(c.grad_k, start), c.grad_k.position, m.work, m.wide);
}

static void backward(Call& c, const Projection& p, const Piece& piece) {
  const long index = piece.index;
  const Head h(c, index);
  Arena measure(nullptr);
  BackwardMemory(h, measure);
  Memory memory(measure.used());
  Arena arena(memory.data);
  BackwardMemory m(h, arena);
  std::memcpy(m.G, piece.passed, h.memory * sizeof(Real));
  std::memcpy(m.of_z, piece.passed + h.memory, h.features * sizeof(Real));
  for (long first = (piece.last - 1) / SAVED * SAVED; first >= piece.first; first -= SAVED) {
    const long last = std::min(first + SAVED, piece.last);
    remake_states(c, p, h, m, first, last);
    for (long chunk = last - 1; chunk >= first; chunk--) chunk_gradients(c, p, h, m, chunk, chunk - first);
  }
  if (piece.first > 0) return;
  if (c.grad_memory) unpack(h, m.G, c.grad_memory + index * c.features * c.values);
  if (c.grad_normaliser) std::memcpy(c.grad_normaliser + index * c.features, m.of_z, c.features * sizeof(Real));
}

// A sequence in pieces ------------------------------------------------------------------------------------------------

// What a piece adds to the state, from no state at all. Returns the logarithm of what it keeps of the state before.
static double piece_state(Call& c, const Projection& p, const Piece& piece, Real* to) {
  const Head h(c, piece.index);
  Arena measure(nullptr);
  ForwardMemory(h, measure);
  Memory memory(measure.used());
  Arena arena(memory.data);
  ForwardMemory m(h, arena);
  std::memset(m.state.memory, 0, h.memory * sizeof(Real));
  std::memset(m.state.normaliser, 0, h.features * sizeof(Real));
  m.state.stabiliser = h.has_scale ? SMALLEST : 0;
  Factors f;
  double log_kept = 0;
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk);
    load_side(h, p, c.k, c.key_scale, c.k_rotation, c.k_rotation_batch, true, start, n, m.k, m.work);
    copy_in(h.at(c.v, start), c.v.position, n, c.values, m.v, h.value_row, h.values);
    find_factors(h, start, n, m.k.log_scale, m.state.stabiliser, f);
    if (h.sums()) {
      const Real* keys = summed(h, c.denominator_k, m.k, start, n, m.own_k);
      for (long i = 0; i < n; i++)
        add_to_normaliser(h, m.state.normaliser, keys + i * h.feature_row, f.kept[i], f.enter[i]);
    }
    add_chunk(h, f, n, m.k.turned, m.v, m.state);
    if (c.log_decay)
      for (long i = 0; i < n; i++) log_kept += c.log_decay[piece.index * c.length + start + i];
  }
  m.state.to(to, h);
  return log_kept;
}

// What a piece's queries add to the gradient of the state before it. Returns what the piece keeps of such a state.
static double piece_gradient(Call& c, const Projection& p, const Piece& piece, Real* to) {
  const Head h(c, piece.index);
  Arena measure(nullptr);
  BackwardMemory(h, measure);
  Memory memory(measure.used());
  Arena arena(memory.data);
  BackwardMemory m(h, arena);
  State state = m.states[0];
  state.from(c.saved + (piece.first / SAVED * c.batch * c.heads + piece.index) * h.state, h);
  Real *G = to, *of_z = to + h.memory;
  std::memset(to, 0, h.state * sizeof(Real));
  Factors f;
  Real kept = 1;
  for (long chunk = piece.first; chunk < piece.last; chunk++) {
    const long start = chunk * CHUNK, n = h.rows(chunk);
    load_side(h, p, c.k, c.key_scale, nullptr, 0, true, start, n, m.k[0], m.work);
    load_side(h, p, c.q, c.query_scale, c.q_rotation, c.q_rotation_batch, false, start, n, m.q, m.work);
    find_factors(h, start, n, m.k[0].log_scale, state.stabiliser, f);
    Real of_total[CHUNK];
    output_gradients(c, h, m, f, start, n, of_total);
    const Real* queries = h.sums() ? summed(h, c.denominator_q, m.q, start, n, m.own_q) : nullptr;
    for (long i = 0; i < n; i++) {
      scale(m.of_out + i * h.value_row, h.values, f.read[i] * kept);
      if (h.sums()) add_to_normaliser(h, of_z, queries + i * h.feature_row, 1, of_total[i] * f.read[i] * kept);
    }
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
  const double faded = first + log_kept, now = h.has_scale ? std::max(faded, second) : 0;
  if (second != now) scale(added, at, Real(std::exp(second - now)));
  add_state(h, before, faded == now ? 1 : Real(std::exp(faded - now)), added);
  std::memcpy(added + at, &now, sizeof(double));
}

// Tasks ---------------------------------------------------------------------------------------------------------------

template <typename Task>
struct Work {
  Task task;
  long tasks;
  std::atomic<long> next{0};
  static void take(void* data) {
    Work& work = *static_cast<Work*>(data);
    for (long i = work.next++; i < work.tasks; i = work.next++) work.task(i);
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
}

// The pieces of all sequences, (batch * heads, pieces): decided by shapes alone, so that results keep their bits.
static std::vector<Piece> pieces_of(const Call& c, std::vector<Real>& passed) {
  const long sequences = c.batch * c.heads, chunks = Kernel::chunks(c), state = Head(c, 0).state;
  const long pieces = std::max(1L, std::min(TASKS / sequences, chunks / (2 * SAVED)));
  std::vector<Piece> all;
  passed.resize(sequences * pieces * state);
  for (long i = 0; i < sequences; i++)
    for (long j = 0; j < pieces; j++) {
      const long first = j * chunks / pieces / SAVED * SAVED;
      const long last = j + 1 < pieces ? (j + 1) * chunks / pieces / SAVED * SAVED : chunks;
      all.push_back({i, first, last, passed.data() + (i * pieces + j) * state});
    }
  return all;
}

static int run_forward(Call* call) {
  Call& c = *call;
  if (c.size != long(sizeof(Call))) return 1;
  const Projection p(c);
  std::vector<Real> passed;
  const std::vector<Piece> pieces = pieces_of(c, passed);
  const long count = long(pieces.size());
  std::vector<double> log_kept(count);
  if (count > c.batch * c.heads)
    run(c, count, [&](long i) {
      if (pieces[i].last < Kernel::chunks(c)) log_kept[i + 1] = piece_state(c, p, pieces[i], pieces[i + 1].passed);
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
  return 0;
}

static int run_backward(Call* call) {
  Call& c = *call;
  if (c.size != long(sizeof(Call))) return 1;
  const Projection p(c);
  std::vector<Real> passed;
  const std::vector<Piece> pieces = pieces_of(c, passed);
  const long count = long(pieces.size());
  std::vector<double> kept(count);
  if (count > c.batch * c.heads)
    run(c, count, [&](long i) {
      if (pieces[i].first > 0) kept[i - 1] = piece_gradient(c, p, pieces[i], pieces[i - 1].passed);
    });
  for (long i = count - 1; i >= 0; i--) {
    const Head h(c, pieces[i].index);
    if (pieces[i].last == Kernel::chunks(c)) {
      pack(h, c.grad_new_memory ? c.grad_new_memory + h.index * c.features * c.values : nullptr, pieces[i].passed);
      pack_vector(h, c.grad_new_normaliser ? c.grad_new_normaliser + h.index * c.features : nullptr,
                  pieces[i].passed + h.memory);
    } else {
      add_state(h, pieces[i + 1].passed, Real(kept[i]), pieces[i].passed);
    }
  }
  run(c, count, [&](long i) { backward(c, p, pieces[i]); });
  return 0;
}

};

}  // namespace

extern "C" {
#pragma GCC visibility push(default)
// Whether this processor has the instructions that this was compiled for.
int linear_rope_supported() {
#ifdef __AVX2__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}
const char* linear_rope_target() {
#ifdef __AVX2__
  return "x86-64-v3";
#else
  return "any processor of its kind";
#endif
}
int linear_rope_forward_float(Kernel<float>::Call* c) { return Kernel<float>::run_forward(c); }
int linear_rope_backward_float(Kernel<float>::Call* c) { return Kernel<float>::run_backward(c); }
int linear_rope_forward_double(Kernel<double>::Call* c) { return Kernel<double>::run_forward(c); }
int linear_rope_backward_double(Kernel<double>::Call* c) { return Kernel<double>::run_backward(c); }
}
