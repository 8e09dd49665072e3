#include "jpeg/header.h"

#include <algorithm>
#include <cstring>

#include "jpeg/markers.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace custom_op {
namespace {

constexpr int64_t kLongestSide = 65500;  // for libjpeg
// Photos have dozens of segments. A hostile file may have millions, each of which costs memory.
constexpr size_t kMaxSegments = 100000;

int64_t big16(const uint8_t* p) { return p[0] << 8 | p[1]; }

bool is_frame(uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != kDht && marker != 0xC8 && marker != kDac;
}

bool is_known(uint8_t marker) {
  return is_frame(marker) || marker == kDht || marker == kDac || marker == kSos || marker == kDqt ||
         marker == kDri || marker == kCom || (marker >= kApp0 && marker <= kApp15);
}

bool parse_frame(const uint8_t* payload, size_t size, Header& header) {
  if (header.frame_marker != 0 || size < 6) return false;
  const int count = payload[5];
  if (count < 1 || count > 4 || size != 6 + 3 * static_cast<size_t>(count)) return false;
  header.precision = payload[0];
  header.height = big16(payload + 1);
  header.width = big16(payload + 3);
  header.component_count = count;
  for (int i = 0; i < count; ++i) {
    const int factors = payload[6 + 3 * i + 1];
    header.components[i] = {factors >> 4, factors & 15};
    if (factors >> 4 < 1 || factors >> 4 > 4 || (factors & 15) < 1 || (factors & 15) > 4) {
      return false;
    }
  }
  return header.height > 0 && header.width > 0;
}

// True if the scan holds all components, in the order of the frame. libjpeg ignores the spectral
// selection and approximation of a sequential scan, and so does this reader.
bool scan_is_complete(const uint8_t* frame, const uint8_t* scan, size_t size, int count) {
  if (size != 4 + 2 * static_cast<size_t>(count) || scan[0] != count) return false;
  for (int i = 0; i < count; ++i) {
    if (scan[1 + 2 * i] != frame[6 + 3 * i]) return false;
  }
  return true;
}

void measure_mcus(Header& header) {
  int horizontal = 1, vertical = 1;
  if (header.component_count > 1) {
    for (int i = 0; i < header.component_count; ++i) {
      horizontal = std::max(horizontal, header.components[i].horizontal);
      vertical = std::max(vertical, header.components[i].vertical);
    }
  }
  header.mcu_height = 8 * vertical;
  header.mcu_width = 8 * horizontal;
  header.mcu_rows = divide_up(header.height, header.mcu_height);
  header.mcus_per_row = divide_up(header.width, header.mcu_width);
}

// Only libjpeg checks the settings of arithmetic coding, even if the scan does not use them.
bool is_dac(const Segment& segment) { return segment.marker == kDac; }

void parse_scan(Bytes jpeg, const Segment& scan, Header& header) {
  header.scan_data = scan.end;
  const bool complete = scan_is_complete(jpeg.data + header.frame + 4, jpeg.data + scan.begin + 4,
                                         scan.end - scan.begin - 4, header.component_count);
  header.baseline = complete && header.precision == 8 && header.frame_marker <= 0xC1 &&
                    std::max(header.height, header.width) <= kLongestSide &&
                    std::none_of(header.segments.begin(), header.segments.end(), is_dac);
  measure_mcus(header);
}

#ifdef __AVX2__

// The next FF that no zero follows, or a place before it.
size_t skip_data(Bytes jpeg, size_t at) {
  const auto where = [&](size_t from, int value) {
    const auto* bytes = reinterpret_cast<const __m256i*>(jpeg.data + from);
    const __m256i equal =
        _mm256_cmpeq_epi8(_mm256_loadu_si256(bytes), _mm256_set1_epi8(static_cast<char>(value)));
    return static_cast<uint32_t>(_mm256_movemask_epi8(equal));
  };
  for (; at + 33 <= jpeg.size; at += 32) {
    const uint32_t found = where(at, 0xFF) & ~where(at + 1, 0);
    if (found != 0) return at + static_cast<size_t>(__builtin_ctz(found));
  }
  return at;
}

#else

size_t skip_data(Bytes, size_t at) { return at; }

#endif

}  // namespace

Marker next_marker(Bytes jpeg, size_t at) {
  while ((at = skip_data(jpeg, at)) < jpeg.size) {
    const void* found = std::memchr(jpeg.data + at, 0xFF, jpeg.size - at);
    if (found == nullptr) break;
    const size_t begin = static_cast<size_t>(static_cast<const uint8_t*>(found) - jpeg.data);
    at = begin + 1;
    while (at < jpeg.size && jpeg.data[at] == 0xFF) ++at;
    if (at < jpeg.size && jpeg.data[at] != 0) return {begin, at};
  }
  return {jpeg.size, jpeg.size};
}

bool parse_header(Bytes jpeg, Header& header) {
  header.segments.clear();
  header.frame_marker = 0;
  header.restart_interval = 0;
  header.baseline = false;
  if (!starts_like_jpeg(jpeg)) return false;
  for (size_t at = 2;;) {
    const size_t code = next_marker(jpeg, at).code;
    if (jpeg.size - code < 3) return false;
    const uint8_t marker = jpeg.data[code];
    if (marker >= kRst0 && marker <= kRst7) {  // without a payload
      at = code + 1;
      continue;
    }
    if (!is_known(marker)) return false;
    const uint8_t* payload = jpeg.data + code + 3;
    const size_t size = static_cast<size_t>(big16(payload - 2));
    if (size < 2 || size > jpeg.size - code - 1) return false;
    const Segment segment{marker, code - 1, code + 1 + size};
    if (header.segments.size() == kMaxSegments) {
      throw JpegError("the JPEG has more than " + std::to_string(kMaxSegments) +
                      " segments before its pixels; refused as hostile");
    }
    header.segments.push_back(segment);
    if (is_frame(marker)) {
      if (!parse_frame(payload, size - 2, header)) return false;
      header.frame_marker = marker;
      header.frame = segment.begin;
    } else if (marker == kDri) {
      if (size != 4) return false;
      header.restart_interval = big16(payload);
    } else if (marker == kSos) {
      if (header.frame_marker == 0) return false;
      parse_scan(jpeg, segment, header);
      return true;
    }
    at = segment.end;
  }
}

bool is_ycbcr(Bytes jpeg, const Header& header) {
  bool jfif = false, adobe = false;
  int transform = 0;
  for (const Segment& segment : header.segments) {
    const uint8_t* payload = jpeg.data + segment.begin + 4;
    const size_t size = segment.end - segment.begin - 4;
    if (segment.marker == kApp0 && size >= 14) jfif |= std::memcmp(payload, "JFIF", 5) == 0;
    if (segment.marker == kApp14 && size >= 12 && std::memcmp(payload, "Adobe", 5) == 0) {
      adobe = true;
      transform = payload[11];
    }
  }
  if (jfif) return true;
  if (adobe) return transform != 0;
  const uint8_t* components = jpeg.data + header.frame + 10;
  return components[0] != 'R' || components[3] != 'G' || components[6] != 'B';
}

namespace {

// The TIFF data inside an APP1 segment. Every read is bounds-checked.
class Tiff {
 public:
  Tiff(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  int orientation() const {
    if (size_ < 8 || (std::memcmp(data_, "II*\0", 4) != 0 && std::memcmp(data_, "MM\0*", 4) != 0)) {
      return 1;
    }
    const uint64_t directory = read(4, 4);
    const uint64_t count = read(directory, 2);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t entry = directory + 2 + 12 * i;
      if (entry + 12 > size_) return 1;
      if (read(entry, 2) != 0x0112) continue;
      const uint64_t kind = read(entry + 2, 2);
      if (kind != kShort && kind != kLong) return 1;  // some writers use LONG, against the standard
      const uint64_t value = read(entry + 8, kind == kShort ? 2 : 4);
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
  }

 private:
  static constexpr uint64_t kShort = 3, kLong = 4;

  uint64_t read(uint64_t at, int bytes) const {
    if (at + static_cast<uint64_t>(bytes) > size_) return 0;
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      const int from = data_[0] == 'I' ? bytes - 1 - i : i;
      value = value << 8 | data_[at + static_cast<uint64_t>(from)];
    }
    return value;
  }

  const uint8_t* data_;
  size_t size_;
};

}  // namespace

int exif_orientation(Bytes jpeg, const Header& header) {
  for (const Segment& segment : header.segments) {
    const uint8_t* payload = jpeg.data + segment.begin + 4;
    const size_t size = segment.end - segment.begin - 4;
    if (segment.marker != kApp1 || size < 6 || std::memcmp(payload, "Exif\0\0", 6) != 0) continue;
    return Tiff(payload + 6, size - 6).orientation();
  }
  return 1;
}

}  // namespace custom_op
