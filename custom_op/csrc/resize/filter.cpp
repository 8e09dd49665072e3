#include "resize/filter.h"

#include <algorithm>
#include <cstring>

#include "resize/axis_weights.h"
#include "resize/filter_row.h"

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

// sums + the products of pairs.
__m256i add_products(__m256i sums, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpwssd_epi32(sums, a, b);
#else
  return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
#endif
}

// Interleaves 16 values of two rows and adds the weighted pairs to two accumulators.
void add_pair(__m128i a, __m128i b, __m256i weights, __m256i& low, __m256i& high) {
  const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
  const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
  low = add_products(low, first, weights);
  high = add_products(high, second, weights);
}

__m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// Two adjacent weights, repeated in every lane.
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
      const __m256i packed = _mm256_packs_epi32(_mm256_srai_epi32(sums[2 * j], kVerticalShift),
                                                _mm256_srai_epi32(sums[2 * j + 1], kVerticalShift));
      // Packing works within each half of the register; this restores the order of the quarters.
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + i + 16 * j),
                          _mm256_permute4x64_epi64(packed, 0xD8));
    }
  }
}

namespace {

// The two pixels at `a` and the two at `b`, as (first, second) pairs of each channel.
__m256i interleaved(const int16_t* a, const int16_t* b) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(a)), load16(b), 1);
  return _mm256_shuffle_epi8(both, order);
}

// A group is a pair of taps.
struct PairFilter {
  using Value = int16_t;
  using Weight = int16_t;
  static constexpr int64_t kValues = 6, kWeights = kWeightsPerTapPair;

  static __m256i half() { return _mm256_set1_epi32(1 << (kHorizontalShift - 1)); }
  static __m256i add(__m256i sums, const int16_t* a, const int16_t* b, const int16_t* weights) {
    const auto* at = reinterpret_cast<const __m256i*>(weights);
    return add_products(sums, interleaved(a, b), _mm256_loadu_si256(at));
  }
  static __m256i words(__m256i left, __m256i right) {
    return _mm256_packs_epi32(_mm256_srai_epi32(left, kHorizontalShift),
                              _mm256_srai_epi32(right, kHorizontalShift));
  }
};

}  // namespace

void filter_horizontally(const int16_t* line, const int32_t* first, const int16_t* weights,
                         int64_t taps, int64_t pixels, uint8_t* out) {
  filter_row<PairFilter>(line, first, weights, taps / 2, pixels, out);
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
    for (int64_t j = 0; j < kTile; ++j)
      line[i + j] = static_cast<int16_t>(sums[j] >> kVerticalShift);
  }
}

void filter_horizontally(const int16_t* line, const int32_t* first, const int16_t* weights,
                         int64_t taps, int64_t pixels, uint8_t* out) {
  for (int64_t x = 0; x < pixels; ++x, out += 3) {
    const int16_t* from = line + 3 * first[x];
    const int16_t* factors = weights + x / 2 * (taps / 2) * kWeightsPerTapPair + x % 2 * 8;
    int32_t sums[3];
    std::fill_n(sums, 3, 1 << (kHorizontalShift - 1));
    for (int64_t k = 0; k < taps; ++k) {
      const int32_t weight = factors[k / 2 * kWeightsPerTapPair + k % 2];
      for (int c = 0; c < 3; ++c) sums[c] += from[3 * k + c] * weight;
    }
    for (int c = 0; c < 3; ++c) {
      out[c] = static_cast<uint8_t>(std::clamp(sums[c] >> kHorizontalShift, 0, 255));
    }
  }
}

#endif

}  // namespace custom_op
