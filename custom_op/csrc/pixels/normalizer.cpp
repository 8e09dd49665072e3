#include "pixels/normalizer.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace custom_op {

Normalizer::Normalizer(const std::array<float, 3>& scale, const std::array<float, 3>& bias) {
  for (size_t i = 0; i < kPeriod; ++i) {
    scale_[i] = scale[i % 3];
    bias_[i] = bias[i % 3];
  }
}

#ifdef __AVX2__

Normalizer::~Normalizer() {
  // Orders the streamed values before whatever tells another thread that they are there.
  _mm_sfence();
}

size_t Normalizer::stream(const uint8_t* pixels, size_t values, float* row) const {
  constexpr size_t kRegister = 8;
  if (reinterpret_cast<uintptr_t>(row) % (kRegister * sizeof(float)) != 0) return 0;
  size_t i = 0;
  for (; i + kPeriod <= values; i += kPeriod) {
    for (size_t j = 0; j < kPeriod; j += kRegister) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels + i + j));
      const __m256 floats = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
      const __m256 scaled = _mm256_mul_ps(floats, _mm256_loadu_ps(&scale_[j]));
      _mm256_stream_ps(row + i + j, _mm256_add_ps(scaled, _mm256_loadu_ps(&bias_[j])));
    }
  }
  return i;
}

#else

Normalizer::~Normalizer() = default;

size_t Normalizer::stream(const uint8_t*, size_t, float*) const { return 0; }

#endif

void Normalizer::write(const uint8_t* pixels, int64_t count, float* row) const {
  const size_t values = static_cast<size_t>(count) * 3;
  size_t i = stream(pixels, values, row);
  for (; i + kPeriod <= values; i += kPeriod) {
    for (size_t j = 0; j < kPeriod; ++j) {
      row[i + j] = static_cast<float>(pixels[i + j]) * scale_[j] + bias_[j];
    }
  }
  for (; i < values; ++i) row[i] = value(pixels[i], i % 3);
}

}  // namespace custom_op
