#include "core/ir/text_cursor.h"

#include <algorithm>
#include <charconv>

#include "core/ir/literal.h"

namespace backplane::ir {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_word_char(char c) { return is_name_char(c) && c != '.' && c != '$'; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void TextCursor::skip_space() {
  while (!at_end()) {
    if (is_space(peek())) {
      ++position_;
    } else if (peek() == '/' && peek(1) == '/') {
      while (!at_end() && peek() != '\n') ++position_;
    } else {
      return;
    }
  }
}

bool TextCursor::take(std::string_view symbol) {
  const std::size_t before = position_;
  skip_space();
  if (at_end() || !text_.substr(position_).starts_with(symbol)) {
    position_ = before;
    return false;
  }
  position_ += symbol.size();
  return true;
}

bool TextCursor::take_word(std::string_view word) {
  const std::size_t before = position_;
  skip_space();
  if (at_end() || !text_.substr(position_).starts_with(word) || is_word_char(peek(word.size()))) {
    position_ = before;
    return false;
  }
  position_ += word.size();
  return true;
}

Status TextCursor::expect(std::string_view symbol) {
  if (take(symbol)) return {};
  skip_space();
  return error("\"" + std::string(symbol) + "\"");
}

std::string_view TextCursor::identifier() {
  skip_space();
  const std::size_t begin = position_;
  if (peek() >= '0' && peek() <= '9') return {};
  while (!at_end() && is_word_char(peek())) ++position_;
  return slice(begin, position_);
}

std::string_view TextCursor::literal() {
  skip_space();
  const std::size_t begin = position_;
  while (!at_end() && (is_word_char(peek()) || peek() == '.' || peek() == '-' || peek() == '+')) {
    ++position_;
  }
  return slice(begin, position_);
}

Result<std::int64_t> TextCursor::integer() {
  skip_space();
  const std::size_t begin = position_;
  const std::string_view text = literal();
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) {
    position_ = begin;
    return error("an integer of 64 bits");
  }
  return value;
}

Result<std::string> TextCursor::quoted() {
  if (!take("\"")) return error("a string in quotes");
  std::string value;
  while (!at_end() && peek() != '"' && peek() != '\n') {
    char c = peek();
    if (c == '\\') {
      ++position_;
      c = peek();
      if (c == 'n') {
        c = '\n';
      } else if (c == 't') {
        c = '\t';
      } else if (c == 'r') {
        c = '\r';
      } else if (c == 'x') {
        const int high = hex_digit(peek(1));
        const int low = hex_digit(peek(2));
        if (high < 0 || low < 0) return error("two hexadecimal digits after \\x");
        c = static_cast<char>(high * 16 + low);
        position_ += 2;
      } else if (c != '"' && c != '\\') {
        return error("one of \" \\ n t r x after a backslash");
      }
    }
    value += c;
    ++position_;
  }
  if (peek() != '"') return error("a closing quote");
  ++position_;
  return value;
}

std::string_view TextCursor::trailing_comment() {
  while (peek() == ' ' || peek() == '\t') ++position_;
  if (peek() != '/' || peek(1) != '/') return {};
  std::size_t begin = position_ + 2;
  while (!at_end() && peek() != '\n') ++position_;
  std::size_t end = position_;
  while (begin < end && is_space(text_[begin])) ++begin;
  while (begin < end && is_space(text_[end - 1])) --end;
  return slice(begin, end);
}

std::string TextCursor::place(std::size_t position) const {
  const std::string_view before = text_.substr(0, std::min(position, text_.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t last = before.rfind('\n');
  const std::size_t column = before.size() - (last == std::string_view::npos ? 0 : last + 1) + 1;
  return "Line " + std::to_string(line) + ", column " + std::to_string(column);
}

std::string TextCursor::found(std::size_t position) const {
  if (position >= text_.size()) return "the end";
  if (text_[position] == '\n') return "the end of the line";
  std::size_t end = position;
  while (end < text_.size() && end - position < 32 && is_name_char(text_[end])) ++end;
  return quote(text_.substr(position, std::max<std::size_t>(end - position, 1)));
}

Status TextCursor::error_at(std::size_t position, std::string_view expected) const {
  return Status(Code::kParseError, place(position) + ": expected " + std::string(expected) +
                                       ", found " + found(position) + ".");
}

Status TextCursor::refuse_at(std::size_t position, std::string_view sentence) const {
  return Status(Code::kParseError, place(position) + ": " + std::string(sentence));
}

}  // namespace backplane::ir
