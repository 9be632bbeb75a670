// Linear attention (RoFormer, arXiv 2104.09864, eq. 19), on a CPU: forward and backward; causal with decay, or with
// every query seeing every key (both_ways.h), which is simpler.
//
// A task is one sequence of one head. It goes through the sequence in chunks of 32 positions, and all that a chunk
// needs fits the second-level cache. With M features, k the mapped and rotated keys, v the values and factors <= 1,
//
//   inside a chunk   S_ij = (q_i . k_j) P_ij,  j <= i;      P_ij = enter_j * product of kept_t, j < t <= i
//   the output       o_i  = (read_i q_i . memory + S_i V) / (q'_i . z_i);     read_i = product of kept_t, t <= i
//   the state        memory <- read_last memory + K^T (stay V);               stay_j = P_last,j
//   the denominator  z_i = kept_i z_(i-1) + enter_i k'_i = read_i z_0 + what the chunk adds
//
// enter and kept are what ops/linear/definition.py calls exp(g_j - c_j) and exp(c_(j-1) + ln a_j - c_j). The backward pass
// goes through the chunks from the last to the first, and makes features and states again from a state that the
// forward pass saved every eighth chunk.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
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
constexpr long WORTH_A_THREAD = 1 << 18;  // numbers of a state that take longer than another thread takes to wake up
constexpr float LARGEST_LOG_SCALE = 60;    // of definition.py
constexpr float SMALLEST_EXPONENT = -30;  // of features/elementwise.py

#ifndef LINEAR_ROPE_SOURCES
#define LINEAR_ROPE_SOURCES ""  // their sha256, which setup.py gives
#endif
#define INLINE static inline __attribute__((always_inline))

enum Status { DONE, ANOTHER_VERSION, NO_MEMORY };  // of native.py too
enum Formula { GIVEN, ELU, RELU, FAVOR };
enum Denominator { UNROTATED, ROTATED, NONE };

#define Real float
namespace in_float {
#include "kernel.h"
}
#undef Real
#define Real double
namespace in_double {
#include "kernel.h"
}
#undef Real

// An exception ends here, before it would reach C.
template <typename Call>
int status_of(int (*run)(Call*), Call* call) {
  if (call->size != long(sizeof(Call))) return ANOTHER_VERSION;
  try {
    return run(call);
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)
// Whether this processor has the instructions that this was compiled for.
int linear_rope_supported() {
#ifdef __AVX2__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return 1;
}
const char* linear_rope_target() {
#ifdef __AVX2__
  return "x86-64-v3";
#endif
  return "any processor of its kind";
}
// What this was compiled from.
const char* linear_rope_sources() { return LINEAR_ROPE_SOURCES; }
int linear_rope_forward_float(in_float::Call* c) { return status_of(in_float::run_forward, c); }
int linear_rope_backward_float(in_float::Call* c) { return status_of(in_float::run_backward, c); }
int linear_rope_both_ways_forward_float(in_float::Call* c) { return status_of(in_float::run_both_ways_forward, c); }
int linear_rope_both_ways_backward_float(in_float::Call* c) { return status_of(in_float::run_both_ways_backward, c); }
int linear_rope_forward_double(in_double::Call* c) { return status_of(in_double::run_forward, c); }
int linear_rope_backward_double(in_double::Call* c) { return status_of(in_double::run_backward, c); }
int linear_rope_both_ways_forward_double(in_double::Call* c) { return status_of(in_double::run_both_ways_forward, c); }
int linear_rope_both_ways_backward_double(in_double::Call* c) { return status_of(in_double::run_both_ways_backward, c); }
}
