// Feature maps and their derivatives, for the rows of a chunk; the formulas are those of features/*.py.

// The projection of FAVOR+, as the passes need it; its `rows` are the features that are not made of another.
struct Projection {
  long rows = 0, padded_rows = 0, padded_width = 0;
  std::vector<Real> columns;  // panels of the transposed matrix, (width x rows)
  std::vector<Real> by_rows;  // panels of the matrix, (rows x width), of the backward pass
  const Real* as_given = nullptr;  // where one position is projected, and packing would take longer than that
  Real factor = 1;

  Projection(const Call& call, bool back) {
    if (call.formula != FAVOR) return;
    factor = Real(std::pow(double(call.width), -0.25));  // queries and keys each carry half of softmax's 1/sqrt(D)
    rows = call.hyperbolic || call.paired ? call.features / 2 : call.features;
    padded_rows = padded(rows);
    padded_width = padded(call.width);
    if (!back && call.length == 1 && call.keys == 1 && padded_width == call.width) {
      as_given = call.projection;
      return;
    }
    std::vector<Real> matrix(padded_rows * padded_width);
    copy_in(call.projection, call.width, rows, call.width, matrix.data(), padded_width, padded_width);
    for (Real& x : matrix) x *= factor;
    columns.resize(matrix.size());
    to_panels(padded_rows, padded_width, matrix.data(), padded_width, columns.data());
    if (!back) return;
    by_rows.resize(matrix.size());
    for (long j = 0; j < padded_width; j += PANEL)
      copy_in(matrix.data() + j, padded_width, padded_rows, PANEL, by_rows.data() + j * padded_rows, PANEL, PANEL);
  }
};

// Features of n rows of x into u, with zeros to their right, and below up to `rows`, and the logarithms of their scales,
// if it has any. `work` holds CHUNK x features.
static void map_rows(const Head& h, const Projection& p, long n, long rows, const Real* x, Real* u, double* log_scale,
                     Real* work) {
  const Call& c = h.call;
  const long row = h.feature_row, x_row = h.width_row;
  if (c.formula == FAVOR) {
    const bool twice = c.hyperbolic || c.paired;
    Real* projected = twice ? work : u;
    if (p.as_given) {
      for (long m = 0; m < p.rows; m++) projected[m] = dot(p.as_given + m * c.width, x, c.width) * p.factor;
      std::memset(projected + p.rows, 0, (p.padded_rows - p.rows) * sizeof(Real));
    } else {
      product(n, p.padded_rows, h.width, {x, x_row, 1}, {p.columns.data(), PANEL, p.padded_width * PANEL},
              {projected, row, PANEL}, false);
    }
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
  std::memset(u + n * row, 0, (rows - n) * row * sizeof(Real));
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
