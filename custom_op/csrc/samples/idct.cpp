#ifdef __AVX2__

#include "samples/idct.h"

#include <immintrin.h>

#include <algorithm>

namespace custom_op {

// Note [The islow transform]
// The two-dimensional transform is a one-dimensional one over the columns, then one over the rows,
// with the algorithm of Loeffler, Ligtenberg and Moschytz (ICASSP 1989): 11 multiplications for 8
// values. Factors have 13 fractional bits; the column pass keeps 2 fractional bits of its results.
// Results are rounded where the Independent JPEG Group's jidctint.c rounds them; pixels are
// identical only if every rounding is.

// Note [Two blocks in a register]
// A register holds a row of 8 values of the left block in its lower half, and of the right block in
// its upper half. The multiplications are those of libjpeg-turbo's jidctint-avx2: pairs of 16-bit
// values times pairs of factors, added in 32 bits. So overflow is the same too, except that
// libjpeg-turbo takes a short cut if only row 0 of a block has coefficients: it shifts them, which
// wraps where the full transform saturates. Such large coefficients of row 0 are rejected.
namespace {

constexpr int kFactorBits = 13, kColumnBits = 2;
constexpr int kColumnShift = kFactorBits - kColumnBits;
constexpr int kRowShift = kFactorBits + kColumnBits + 3;

// Factors as the paper names them, times 1 << kFactorBits.
constexpr int k0_298 = 2446, k0_390 = 3196, k0_541 = 4433, k0_765 = 6270, k0_899 = 7373,
              k1_175 = 9633, k1_501 = 12299, k1_847 = 15137, k1_961 = 16069, k2_053 = 16819,
              k2_562 = 20995, k3_072 = 25172;

// Real images have dequantized coefficients of at most 2048 or so.
constexpr int kLargest = 8191;

using Rows = __m256i[8];

// Pairs of 32-bit sums: of the lower and the upper four columns of both blocks.
struct Sums {
  __m256i low, high;
};

Sums operator+(const Sums& a, const Sums& b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

Sums operator-(const Sums& a, const Sums& b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

struct Pairs {
  __m256i low, high;
};

Pairs pairs_of(__m256i a, __m256i b) {
  return {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}

// a * factor_a + b * factor_b of each pair.
Sums times(const Pairs& pairs, int factor_a, int factor_b) {
  const auto a = static_cast<uint16_t>(factor_a), b = static_cast<uint16_t>(factor_b);
  const __m256i factors = _mm256_set1_epi32(static_cast<int>(uint32_t{b} << 16 | a));
  return {_mm256_madd_epi16(pairs.low, factors), _mm256_madd_epi16(pairs.high, factors)};
}

template <int kShift>
Sums shifted_up_and_half(__m256i values) {
  const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (kShift - 1));
  const auto shift = [&](__m256i words) {
    return _mm256_add_epi32(_mm256_srai_epi32(words, 16 - kFactorBits), half);
  };
  return {shift(_mm256_unpacklo_epi16(zero, values)), shift(_mm256_unpackhi_epi16(zero, values))};
}

template <int kShift>
__m256i narrowed(const Sums& sums) {
  return _mm256_packs_epi32(_mm256_srai_epi32(sums.low, kShift),
                            _mm256_srai_epi32(sums.high, kShift));
}

// One pass over the columns of the registers.
template <int kShift>
inline __attribute__((always_inline)) void transform(Rows& x) {
  const Pairs two_six = pairs_of(x[2], x[6]);
  const Sums even2 = times(two_six, k0_541, k0_541 - k1_847);
  const Sums even3 = times(two_six, k0_541 + k0_765, k0_541);
  const Sums even0 = shifted_up_and_half<kShift>(_mm256_add_epi16(x[0], x[4]));
  const Sums even1 = shifted_up_and_half<kShift>(_mm256_sub_epi16(x[0], x[4]));
  const Sums e0 = even0 + even3, e3 = even0 - even3, e1 = even1 + even2, e2 = even1 - even2;

  const Pairs sums = pairs_of(_mm256_add_epi16(x[7], x[3]), _mm256_add_epi16(x[5], x[1]));
  const Sums z3 = times(sums, k1_175 - k1_961, k1_175);
  const Sums z4 = times(sums, k1_175, k1_175 - k0_390);
  const Pairs seven_one = pairs_of(x[7], x[1]), five_three = pairs_of(x[5], x[3]);
  const Sums o3 = times(seven_one, k0_298 - k0_899, -k0_899) + z3;
  const Sums o0 = times(seven_one, -k0_899, k1_501 - k0_899) + z4;
  const Sums o2 = times(five_three, k2_053 - k2_562, -k2_562) + z4;
  const Sums o1 = times(five_three, -k2_562, k3_072 - k2_562) + z3;

  x[0] = narrowed<kShift>(e0 + o0);
  x[7] = narrowed<kShift>(e0 - o0);
  x[1] = narrowed<kShift>(e1 + o1);
  x[6] = narrowed<kShift>(e1 - o1);
  x[2] = narrowed<kShift>(e2 + o2);
  x[5] = narrowed<kShift>(e2 - o2);
  x[3] = narrowed<kShift>(e3 + o3);
  x[4] = narrowed<kShift>(e3 - o3);
}

// Transposes both blocks.
inline __attribute__((always_inline)) void transpose(Rows& x) {
  Rows a, b;
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      b[4 * i + 2 * j] = _mm256_unpacklo_epi32(a[4 * i + j], a[4 * i + j + 2]);
      b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi32(a[4 * i + j], a[4 * i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 4]);
    x[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 4]);
  }
}

__m128i load8(const void* at) { return _mm_load_si128(static_cast<const __m128i*>(at)); }

// Row i of both blocks, dequantized.
__m256i row(const int16_t* left, const int16_t* right, const uint16_t* quantization, int i) {
  const __m256i both =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load8(left + 8 * i)), load8(right + 8 * i), 1);
  return _mm256_mullo_epi16(both, _mm256_broadcastsi128_si256(load8(quantization + 8 * i)));
}

// Samples of two columns of a block.
__m256i samples_of(__m256i a, __m256i b) {
  return _mm256_xor_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8(static_cast<char>(128)));
}

// Stores columns as 8 rows of 16 samples.
inline __attribute__((always_inline)) void store(const Rows& columns, uint8_t* out,
                                                 int64_t stride) {
  // Columns 0 and 4, 1 and 5, 2 and 6, 3 and 7.
  __m256i a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = samples_of(columns[i], columns[i + 4]);
  // Pairs of columns: 0 and 1, 4 and 5, 2 and 3, 6 and 7.
  for (int i = 0; i < 2; ++i) {
    b[2 * i] = _mm256_unpacklo_epi8(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_epi8(a[2 * i], a[2 * i + 1]);
  }
  // Columns 0 to 3 and 4 to 7 of rows 0 to 3, then of rows 4 to 7.
  const __m256i halves[4] = {_mm256_unpacklo_epi16(b[0], b[2]), _mm256_unpacklo_epi16(b[1], b[3]),
                             _mm256_unpackhi_epi16(b[0], b[2]), _mm256_unpackhi_epi16(b[1], b[3])};
  const auto store_two = [&](__m256i rows, int row) {
    // From left first, left second, right first, right second.
    const __m256i ordered = _mm256_permute4x64_epi64(rows, 0xD8);
    auto* const at = reinterpret_cast<__m128i*>(out + row * stride);
    _mm_storeu_si128(at, _mm256_castsi256_si128(ordered));
    auto* const below = reinterpret_cast<__m128i*>(out + (row + 1) * stride);
    _mm_storeu_si128(below, _mm256_extracti128_si256(ordered, 1));
  };
  for (int i = 0; i < 2; ++i) {
    store_two(_mm256_unpacklo_epi32(halves[2 * i], halves[2 * i + 1]), 4 * i);
    store_two(_mm256_unpackhi_epi32(halves[2 * i], halves[2 * i + 1]), 4 * i + 2);
  }
}

}  // namespace

bool inverse_dct(const int16_t* const* blocks, int64_t count, const uint16_t* quantization,
                 uint8_t* out, int64_t stride) {
  const __m256i most = _mm256_set1_epi16(kLargest + 1);
  __m256i too_large = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 2, out += 16) {
    const int16_t *left = blocks[i], *right = blocks[std::min(i + 1, count - 1)];
    Rows x;
    for (int k = 0; k < 8; ++k) x[k] = row(left, right, quantization, k);
    // The upper two bits are zero for -8192 ... 8191.
    too_large = _mm256_or_si256(too_large, _mm256_add_epi16(x[0], most));
    transform<kColumnShift>(x);
    transpose(x);
    transform<kRowShift>(x);
    store(x, out, stride);
  }
  return _mm256_testz_si256(too_large, _mm256_set1_epi16(static_cast<int16_t>(0xC000))) != 0;
}

}  // namespace custom_op

#endif
