// Converts rows of pixels to float32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace custom_op {

// Computes value * scale + bias, where scale and bias are those of the value's channel.
class Normalizer {
 public:
  Normalizer(const std::array<float, 3>& scale, const std::array<float, 3>& bias);
  ~Normalizer();
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;

  float value(uint8_t value, size_t channel) const {
    return static_cast<float>(value) * scale_[channel] + bias_[channel];
  }

  void write(const uint8_t* pixels, int64_t count, float* row) const;

 private:
  // Writes past the cache, where the processor and the row's address allow it. A batch is larger
  // than the cache anyway, and what the cache holds need not be read before it is overwritten.
  // Returns how many values it has written.
  size_t stream(const uint8_t* pixels, size_t values, float* row) const;

  // A multiple of 3 channels and of a vector register.
  static constexpr size_t kPeriod = 24;
  std::array<float, kPeriod> scale_, bias_;
};

}  // namespace custom_op
