// Products of small matrices, in tiles of 16 columns.
//
// Matrices have rows of a multiple of 16 numbers, filled up with zeros, and 16 more between rows: rows a power of two
// apart would share the same few places of the first-level cache. "Panels" are 16 columns after another.

// C[R x 16] (+)= A[R x K] B[K x 16]; the product is added as a whole, so that long sums lose little of it.
template <int R>
INLINE void tile(long K, const Real* A, long row, long column, const Real* B, long b_row, Real* C, long c_row,
                 bool add) {
  Vector left[R] = {}, right[R] = {};
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
    Real* to = C + r * c_row;
    store(to, add ? load(to) + left[r] : left[r]);
    store(to + LANES, add ? load(to + LANES) + right[r] : right[r]);
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

// n rows of `width` numbers into a matrix; zeros to their right, and below up to `rows`.
static void copy_rows(const Real* from, long from_row, long n, long rows, long width, Real* to, long to_row,
                      long to_width) {
  for (long i = 0; i < rows; i++) {
    const long there = i < n ? width : 0;
    if (there) std::memcpy(to + i * to_row, from + i * from_row, there * sizeof(Real));
    std::memset(to + i * to_row + there, 0, (to_width - there) * sizeof(Real));
  }
}

// Likewise into a chunk's matrix, whose products take whole tiles: up to a multiple of 16 rows.
static void copy_in(const Real* from, long from_row, long n, long width, Real* to, long to_row, long to_width) {
  copy_rows(from, from_row, n, padded(n), width, to, to_row, to_width);
}

static void copy_out(const Real* from, long from_row, long n, long width, Real* to, long to_row) {
  for (long i = 0; i < n; i++) std::memcpy(to + i * to_row, from + i * from_row, width * sizeof(Real));
}
