// The end of both horizontal filters for AVX2.
#pragma once

#ifdef __AVX2__

#include <immintrin.h>

#include <cstdint>

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

}  // namespace custom_op

#endif
