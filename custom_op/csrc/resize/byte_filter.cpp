#include "resize/byte_filter.h"

#include <cstring>

#include "resize/axis_weights.h"
#include "resize/filter_row.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace custom_op {
namespace {

constexpr int kByteShift = ByteWeights::kBits, kSumShift = ByteWeights::kBits - 2;
constexpr int64_t kAtOnce = 32;

}  // namespace

#ifdef __AVX2__

namespace {

// 8 values in each half of `low`, the next 8 in each half of `high`.
struct Sums {
  __m256i low, high;
};

// The pairs of a weight are bytes that lie beside each other, so the sums fit into 16 bits.
[[gnu::always_inline]] inline Sums sum_rows(const uint8_t* const* rows, const int8_t* weights,
                                            int64_t taps, int64_t i, int shift) {
  const __m256i half = _mm256_set1_epi16(static_cast<int16_t>(1 << (shift - 1)));
  Sums sums{half, half};
  for (int64_t k = 0; k < taps; k += 2) {
    int16_t pair;
    std::memcpy(&pair, weights + k, 2);
    const __m256i factors = _mm256_set1_epi16(pair);
    const auto* a = reinterpret_cast<const __m256i*>(rows[k] + i);
    const auto* b = reinterpret_cast<const __m256i*>(rows[k + 1] + i);
    const __m256i first = _mm256_loadu_si256(a), second = _mm256_loadu_si256(b);
    sums.low = _mm256_add_epi16(sums.low,
                                _mm256_maddubs_epi16(_mm256_unpacklo_epi8(first, second), factors));
    sums.high = _mm256_add_epi16(
        sums.high, _mm256_maddubs_epi16(_mm256_unpackhi_epi8(first, second), factors));
  }
  return {_mm256_srli_epi16(sums.low, shift), _mm256_srli_epi16(sums.high, shift)};
}

void store(__m256i values, void* out) { _mm256_storeu_si256(static_cast<__m256i*>(out), values); }

}  // namespace

void filter_bytes_vertically(const uint8_t* const* rows, const int8_t* weights, int64_t taps,
                             int64_t values, uint8_t* out) {
  for (int64_t i = 0; i < values; i += kAtOnce) {
    const Sums sums = sum_rows(rows, weights, taps, i, kByteShift);
    store(_mm256_packus_epi16(sums.low, sums.high), out + i);
  }
}

void filter_sums_vertically(const uint8_t* const* rows, const int8_t* weights, int64_t taps,
                            int64_t values, uint16_t* out) {
  for (int64_t i = 0; i < values; i += kAtOnce) {
    const Sums sums = sum_rows(rows, weights, taps, i, kSumShift);
    store(_mm256_permute2x128_si256(sums.low, sums.high, 0x20), out + i);
    store(_mm256_permute2x128_si256(sums.low, sums.high, 0x31), out + i + 16);
  }
}

namespace {

// The 4 pixels at `a` and the 4 at `b`, as (first, second) and (third, fourth) of each channel.
__m256i paired(const uint8_t* a, const uint8_t* b) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1));
  const auto load = [](const uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  return _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(load(a)), load(b), 1),
                             order);
}

// A group is 4 taps.
struct ByteFilter {
  using Value = uint8_t;
  using Weight = int8_t;
  static constexpr int64_t kValues = 12, kWeights = kWeightsPerGroup;

  // Of the sums of the first pairs only: words() adds those of the second.
  static __m256i half() {
    constexpr int64_t kHalf = 0x0001000100010001 << (kByteShift - 1);
    return _mm256_setr_epi64x(kHalf, 0, kHalf, 0);
  }
  static __m256i add(__m256i sums, const uint8_t* a, const uint8_t* b, const int8_t* weights) {
    const auto* at = reinterpret_cast<const __m256i*>(weights);
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(paired(a, b), _mm256_loadu_si256(at)));
  }
  // Each half of a register holds the sums of the first and of the second pairs of a pixel.
  static __m256i words(__m256i left, __m256i right) {
    const __m256i sums =
        _mm256_add_epi16(_mm256_unpacklo_epi64(left, right), _mm256_unpackhi_epi64(left, right));
    return _mm256_srli_epi16(sums, kByteShift);
  }
};

}  // namespace

void filter_bytes_horizontally(const uint8_t* line, const int32_t* starts, const int8_t* weights,
                               int64_t groups, int64_t pixels, uint8_t* out) {
  filter_row<ByteFilter>(line, starts, weights, groups, pixels, out);
}

#else

namespace {

template <typename T>
void filter_rows(const uint8_t* const* rows, const int8_t* weights, int64_t taps, int64_t values,
                 int shift, T* out) {
  for (int64_t i = 0; i < values; i += kAtOnce) {
    int32_t sums[kAtOnce];
    for (int64_t j = 0; j < kAtOnce; ++j) sums[j] = 1 << (shift - 1);
    for (int64_t k = 0; k < taps; ++k) {
      for (int64_t j = 0; j < kAtOnce; ++j) sums[j] += rows[k][i + j] * weights[k];
    }
    for (int64_t j = 0; j < kAtOnce; ++j) out[i + j] = static_cast<T>(sums[j] >> shift);
  }
}

}  // namespace

void filter_bytes_vertically(const uint8_t* const* rows, const int8_t* weights, int64_t taps,
                             int64_t values, uint8_t* out) {
  filter_rows(rows, weights, taps, values, kByteShift, out);
}

void filter_sums_vertically(const uint8_t* const* rows, const int8_t* weights, int64_t taps,
                            int64_t values, uint16_t* out) {
  filter_rows(rows, weights, taps, values, kSumShift, out);
}

void filter_bytes_horizontally(const uint8_t* line, const int32_t* starts, const int8_t* weights,
                               int64_t groups, int64_t pixels, uint8_t* out) {
  for (int64_t x = 0; x < pixels; ++x, out += 3) {
    const uint8_t* from = line + starts[x];
    const int8_t* factors = weights + x / 2 * groups * kWeightsPerGroup + x % 2 * 16;
    for (int c = 0; c < 3; ++c) {
      int32_t sum = 1 << (kByteShift - 1);
      for (int64_t k = 0; k < 4 * groups; ++k) {
        sum += from[3 * k + c] * factors[k / 4 * kWeightsPerGroup + k % 4 / 2 * 8 + k % 2];
      }
      out[c] = static_cast<uint8_t>(sum >> kByteShift);
    }
  }
}

#endif

}  // namespace custom_op
