// The loop of both horizontal filters for AVX2.
#pragma once

#ifdef __AVX2__

#include <immintrin.h>

#include <cstdint>

#include "resize/filter.h"

namespace custom_op {

// Writes 4 pixels of 3 bytes, and 4 bytes past them. `words` holds 4 values of each, the last
// without a meaning: the first and third pixel in its lower half, the others in its upper half.
inline void store_pixels(__m256i words, uint8_t* out) {
  const __m256i bytes = _mm256_packus_epi16(words, words);
  const __m128i in_order =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(in_order, order));
}

// Filters with kGroups groups of taps, or `groups` if kGroups is 0. `Filter` has:
//   Value, Weight    the types of the line and of the weights
//   kValues          values of the line in a group of taps
//   kWeights         weights of a group of taps, for two output pixels
//   half()           the start of a register of sums: half of what is shifted out of them
//   add(sums, a, b, weights)    the sums of two output pixels and their values at `a` and `b`
//   words(left, right)          four pixels as store_pixels takes them
template <typename Filter, int kGroups>
void filter_unrolled(const typename Filter::Value* line, const int32_t* starts,
                     const typename Filter::Weight* weights, int64_t groups, int64_t pixels,
                     uint8_t* out) {
  constexpr int64_t kValues = Filter::kValues, kWeights = Filter::kWeights;
  const int64_t count = kGroups == 0 ? groups : kGroups;
  const __m256i half = Filter::half();
  for (int64_t x = 0; x < pixels; x += kPixelsAtOnce, weights += count * kWeights) {
    const auto from = [&](int64_t i) { return line + starts[x + i]; };
    const auto *a = from(0), *b = from(1), *c = from(2), *d = from(3);
    __m256i left = half, right = half;
    for (int64_t k = 0; k < count; ++k, weights += kWeights) {
      left = Filter::add(left, a + kValues * k, b + kValues * k, weights);
      right = Filter::add(right, c + kValues * k, d + kValues * k, weights + count * kWeights);
    }
    store_pixels(Filter::words(left, right), out + 3 * x);
  }
}

// Filters a row, with an unrolled loop for the usual numbers of groups.
template <typename Filter>
void filter_row(const typename Filter::Value* line, const int32_t* starts,
                const typename Filter::Weight* weights, int64_t groups, int64_t pixels,
                uint8_t* out) {
  switch (groups) {
    case 1:
      return filter_unrolled<Filter, 1>(line, starts, weights, 1, pixels, out);
    case 2:
      return filter_unrolled<Filter, 2>(line, starts, weights, 2, pixels, out);
    case 3:
      return filter_unrolled<Filter, 3>(line, starts, weights, 3, pixels, out);
    case 4:
      return filter_unrolled<Filter, 4>(line, starts, weights, 4, pixels, out);
    default:
      return filter_unrolled<Filter, 0>(line, starts, weights, groups, pixels, out);
  }
}

}  // namespace custom_op

#endif
