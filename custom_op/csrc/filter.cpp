#include "filter.h"

#include <algorithm>
#include <cstring>

#include "resize.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace custom_op {
namespace {

constexpr int kVerticalShift = AxisWeights::kBits - kLineBits;
constexpr int kHorizontalShift = AxisWeights::kBits + kLineBits;

}  // namespace

#ifdef __AVX2__

namespace {

// Adds the products of 16 values of two rows, given interleaved by unpack, to two accumulators.
void add_pair(__m128i a, __m128i b, __m256i weights, __m256i& low, __m256i& high) {
  const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
  const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
  low = _mm256_add_epi32(low, _mm256_madd_epi16(first, weights));
  high = _mm256_add_epi32(high, _mm256_madd_epi16(second, weights));
}

__m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// Two weights, side by side in every lane.
__m256i weight_pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, 4);
  return _mm256_set1_epi32(pair);
}

}  // namespace

void filter_vertically(const uint8_t* const* rows, const int16_t* weights, int64_t taps,
                       int64_t values, int16_t* line) {
  const __m256i half = _mm256_set1_epi32(1 << (kVerticalShift - 1));
  for (int64_t i = 0; i < values; i += 32) {
    __m256i sums[4] = {half, half, half, half};
    for (int64_t k = 0; k < taps; k += 2) {
      const __m256i pair = weight_pair(weights + k);
      const uint8_t *a = rows[k] + i, *b = rows[k + 1] + i;
      add_pair(load16(a), load16(b), pair, sums[0], sums[1]);
      add_pair(load16(a + 16), load16(b + 16), pair, sums[2], sums[3]);
    }
    for (int j = 0; j < 2; ++j) {
      const __m256i packed =
          _mm256_packs_epi32(_mm256_srai_epi32(sums[2 * j], kVerticalShift),
                             _mm256_srai_epi32(sums[2 * j + 1], kVerticalShift));
      // Packing works within halves of the register; this puts the quarters in order.
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + i + 16 * j),
                          _mm256_permute4x64_epi64(packed, 0xD8));
    }
  }
}

void filter_horizontally(const int16_t* pixels, const int16_t* weights, int64_t taps,
                         uint8_t* out) {
  // Two pixels' values become (first, second) pairs of each colour, as the multiply-add wants them.
  const __m256i interleave = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
  // The first two weights for the lower half, the next two for the upper.
  const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  __m256i sums = _mm256_setzero_si256();
  for (int64_t k = 0; k < taps; k += 4) {
    const __m256i four = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(pixels + 3 * k)),
                                                 load16(pixels + 3 * k + 6), 1);
    const __m128i quad = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights + k));
    const __m256i factors = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(quad), spread);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(four, interleave), factors));
  }
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  sum = _mm_add_epi32(sum, _mm_set1_epi32(1 << (kHorizontalShift - 1)));
  sum = _mm_srai_epi32(sum, kHorizontalShift);
  sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
  const int32_t bytes = _mm_cvtsi128_si32(sum);
  std::memcpy(out, &bytes, 4);
}

#else

void filter_vertically(const uint8_t* const* rows, const int16_t* weights, int64_t taps,
                       int64_t values, int16_t* line) {
  constexpr int64_t kTile = 32;
  for (int64_t i = 0; i < values; i += kTile) {
    int32_t sums[kTile];
    std::fill_n(sums, kTile, 1 << (kVerticalShift - 1));
    for (int64_t k = 0; k < taps; ++k) {
      const uint8_t* row = rows[k] + i;
      for (int64_t j = 0; j < kTile; ++j) sums[j] += row[j] * weights[k];
    }
    for (int64_t j = 0; j < kTile; ++j) line[i + j] = static_cast<int16_t>(sums[j] >> kVerticalShift);
  }
}

void filter_horizontally(const int16_t* pixels, const int16_t* weights, int64_t taps,
                         uint8_t* out) {
  int32_t sums[4];
  std::fill_n(sums, 4, 1 << (kHorizontalShift - 1));
  for (int64_t k = 0; k < taps; ++k) {
    for (int c = 0; c < 4; ++c) sums[c] += pixels[3 * k + c] * weights[k];
  }
  for (int c = 0; c < 4; ++c) {
    out[c] = static_cast<uint8_t>(std::clamp(sums[c] >> kHorizontalShift, 0, 255));
  }
}

#endif

}  // namespace custom_op
