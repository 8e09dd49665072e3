// The inverse DCT for processors without AVX2.
#ifndef __AVX2__

#include <algorithm>
#include <array>
#include <utility>

#include "samples/idct.h"
#include "samples/idct_factors.h"

namespace custom_op {

namespace {

// Compilers vectorize the loops over columns.
using Values = std::array<std::array<int32_t, 8>, 8>;

template <int kShift>
void transform(Values& x) {
  constexpr int kHalf = 1 << (kShift - 1);
  for (size_t c = 0; c < 8; ++c) {
    const int32_t z1 = (x[2][c] + x[6][c]) * k0_541;
    const int32_t even2 = z1 - x[6][c] * k1_847, even3 = z1 + x[2][c] * k0_765;
    const int32_t even0 = (x[0][c] + x[4][c]) * (1 << kFactorBits) + kHalf;
    const int32_t even1 = (x[0][c] - x[4][c]) * (1 << kFactorBits) + kHalf;
    const int32_t e0 = even0 + even3, e3 = even0 - even3, e1 = even1 + even2, e2 = even1 - even2;

    const int32_t sum3 = x[7][c] + x[3][c], sum4 = x[5][c] + x[1][c];
    const int32_t z5 = (sum3 + sum4) * k1_175;
    const int32_t z3 = z5 - sum3 * k1_961, z4 = z5 - sum4 * k0_390;
    const int32_t seven_one = (x[7][c] + x[1][c]) * k0_899;
    const int32_t five_three = (x[5][c] + x[3][c]) * k2_562;
    const int32_t o3 = x[7][c] * k0_298 - seven_one + z3;
    const int32_t o0 = x[1][c] * k1_501 - seven_one + z4;
    const int32_t o2 = x[5][c] * k2_053 - five_three + z4;
    const int32_t o1 = x[3][c] * k3_072 - five_three + z3;

    x[0][c] = (e0 + o0) >> kShift;
    x[7][c] = (e0 - o0) >> kShift;
    x[1][c] = (e1 + o1) >> kShift;
    x[6][c] = (e1 - o1) >> kShift;
    x[2][c] = (e2 + o2) >> kShift;
    x[5][c] = (e2 - o2) >> kShift;
    x[3][c] = (e3 + o3) >> kShift;
    x[4][c] = (e3 - o3) >> kShift;
  }
}

void transpose(Values& x) {
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < i; ++j) std::swap(x[i][j], x[j][i]);
  }
}

// True if all values are from -limit to limit - 1; `limit` is a power of 2.
bool within(const Values& x, int32_t limit) {
  int32_t bits = 0;
  for (const auto& row : x) {
    for (const int32_t value : row) bits |= value + limit;
  }
  return (bits & ~(2 * limit - 1)) == 0;
}

}  // namespace

// Within these limits no implementation of libjpeg-turbo overflows: 16-bit sums of two values, and
// a table of 1024 samples.
bool inverse_dct(const int16_t* const* blocks, int64_t count, const uint16_t* quantization,
                 uint8_t* out, int64_t stride) {
  bool good = true;
  for (int64_t i = 0; i < count; ++i, out += 8) {
    Values x;
    for (size_t k = 0; k < 64; ++k) x[k / 8][k % 8] = blocks[i][k] * quantization[k];
    good = good && within(x, kLargest + 1);
    if (!good) return false;
    transform<kColumnShift>(x);
    good = within(x, 16384);
    if (!good) return false;
    transpose(x);
    transform<kRowShift>(x);
    good = within(x, 512);
    for (size_t c = 0; c < 8; ++c) {
      for (size_t r = 0; r < 8; ++r) {
        out[static_cast<int64_t>(r) * stride + static_cast<int64_t>(c)] =
            static_cast<uint8_t>(std::clamp(x[c][r] + 128, 0, 255));
      }
    }
  }
  return good;
}

}  // namespace custom_op

#endif
