#include "resize/filter.h"

#include <algorithm>
#include <cstring>

#include "resize/axis_weights.h"

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

__m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
__m256i load32(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

// The weighted sums of 16 values, the even and the odd ones apart.
struct LineSums {
  __m256i even, odd;

  // `pairs`: two bytes of one row, two of the next, and so on.
  void add(__m256i pairs, __m256i weights) {
    even = add_products(even, _mm256_and_si256(pairs, _mm256_set1_epi16(255)), weights);
    odd = add_products(odd, _mm256_srli_epi16(pairs, 8), weights);
  }
  // No sum is negative.
  __m256i line() const {
    return _mm256_blend_epi16(_mm256_srli_epi32(even, kVerticalShift),
                              _mm256_slli_epi32(odd, 16 - kVerticalShift), 0xAA);
  }
};

// Two adjacent weights, repeated in every lane.
__m256i weight_pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, 4);
  return _mm256_set1_epi32(pair);
}

// With kTaps taps, or `taps` if kTaps is 0. Without __restrict, the weights would be loaded again
// after each store.
template <int kTaps>
void filter_rows(const uint8_t* const* rows, const int16_t* __restrict weights, int64_t taps,
                 int64_t values, int16_t* __restrict line) {
  const int64_t count = kTaps == 0 ? taps : kTaps;
  const __m256i half = _mm256_set1_epi32(1 << (kVerticalShift - 1));
  for (int64_t i = 0; i < values; i += 32) {
    LineSums first = {half, half}, second = {half, half};
    for (int64_t k = 0; k < count; k += 2) {
      const __m256i pair = weight_pair(weights + k);
      const __m256i a = load32(rows[k] + i), b = load32(rows[k + 1] + i);
      first.add(_mm256_unpacklo_epi16(a, b), pair);
      second.add(_mm256_unpackhi_epi16(a, b), pair);
    }
    // Interleaving works within each half of the register; this restores the order.
    const __m256i low = first.line(), high = second.line();
    auto* const to = reinterpret_cast<__m256i*>(line + i);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

}  // namespace

void filter_vertically(const uint8_t* const* rows, const int16_t* weights, int64_t taps,
                       int64_t values, int16_t* line) {
  switch (taps) {
    case 2:
      return filter_rows<2>(rows, weights, taps, values, line);
    case 4:
      return filter_rows<4>(rows, weights, taps, values, line);
    case 6:
      return filter_rows<6>(rows, weights, taps, values, line);
    default:
      return filter_rows<0>(rows, weights, taps, values, line);
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

// The values of two output pixels.
__m256i shifted(__m256i sums) { return _mm256_srai_epi32(sums, kHorizontalShift); }

// Writes 4 pixels of 3 bytes, and 4 bytes past them. `words` holds 4 values of each, the last
// without a meaning: the first and third pixel in its lower half, the others in its upper half.
void store_pixels(__m256i words, uint8_t* out) {
  const __m256i bytes = _mm256_packus_epi16(words, words);
  const __m128i in_order =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(in_order, order));
}

// With kPairs pairs of taps, or `pairs` if kPairs is 0.
template <int kPairs>
void filter_line(const int16_t* line, const int32_t* starts, const int16_t* weights, int64_t pairs,
                 int64_t pixels, uint8_t* out) {
  constexpr int64_t kValues = 6;  // of the line in a pair of taps
  const int64_t count = kPairs == 0 ? pairs : kPairs;
  const __m256i half = _mm256_set1_epi32(1 << (kHorizontalShift - 1));
  for (int64_t x = 0; x < pixels; x += kPixelsAtOnce, weights += count * kWeightsPerTapPair) {
    const auto from = [&](int64_t i) { return line + starts[x + i]; };
    const auto *a = from(0), *b = from(1), *c = from(2), *d = from(3);
    __m256i left = half, right = half;
    for (int64_t k = 0; k < count; ++k, weights += kWeightsPerTapPair) {
      const int64_t at = kValues * k;
      left = add_products(left, interleaved(a + at, b + at), load32(weights));
      right = add_products(right, interleaved(c + at, d + at),
                           load32(weights + count * kWeightsPerTapPair));
    }
    store_pixels(_mm256_packs_epi32(shifted(left), shifted(right)), out + 3 * x);
  }
}

}  // namespace

void filter_horizontally(const int16_t* line, const int32_t* starts, const int16_t* weights,
                         int64_t taps, int64_t pixels, uint8_t* out) {
  const int64_t pairs = taps / 2;
  switch (pairs) {
    case 1:
      return filter_line<1>(line, starts, weights, pairs, pixels, out);
    case 2:
      return filter_line<2>(line, starts, weights, pairs, pixels, out);
    case 3:
      return filter_line<3>(line, starts, weights, pairs, pixels, out);
    case 4:
      return filter_line<4>(line, starts, weights, pairs, pixels, out);
    default:
      return filter_line<0>(line, starts, weights, pairs, pixels, out);
  }
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

void filter_horizontally(const int16_t* line, const int32_t* starts, const int16_t* weights,
                         int64_t taps, int64_t pixels, uint8_t* out) {
  for (int64_t x = 0; x < pixels; ++x, out += 3) {
    const int16_t* from = line + starts[x];
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
