#include <gmock/gmock.h>
#include <opcode.h>

#include <string>
#include <vector>

#include "core/cpython/bytecode/code.h"
#include "core/cpython/bytecode/opcodes.h"
#include "core/cpython/bytecode/testing/embedded_python.h"

namespace backplane::cpython {
namespace {

using BytecodeTest = WithPython;

PyCodeObject* code_of(PyObject* function) {
  return reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
}

// Taken apart and put together: "" where all is as it was, else what differs.
std::string reassemble(PyCodeObject* code) {
  Result<Code> decoded = decode(code);
  if (!decoded.ok()) return decoded.status().to_string();
  const CodeShape shape(code);
  Result<Ref> made = assemble(*decoded, shape);
  if (!made.ok()) return made.status().to_string();
  auto* again = reinterpret_cast<PyCodeObject*>(made->get());
  const Ref before = Ref::steal(PyCode_GetCode(code));
  const Ref after = Ref::steal(PyCode_GetCode(again));
  const auto differ = [](PyObject* a, PyObject* b) {
    return PyObject_RichCompareBool(a, b, Py_EQ) != 1;
  };
  if (differ(before.get(), after.get())) return "bytecode";
  if (differ(code->co_exceptiontable, again->co_exceptiontable)) return "exception table";
  if (differ(code->co_linetable, again->co_linetable)) return "line table";
  // CPython gives some code around `with` and `except` more than it needs.
  if (again->co_stacksize > code->co_stacksize + 1) return "stack size";
  return "";
}

void reassemble_all(PyObject* code, int& count, std::vector<std::string>& differences) {
  ++count;
  auto* object = reinterpret_cast<PyCodeObject*>(code);
  if (const std::string difference = reassemble(object); !difference.empty())
    differences.push_back(std::string(PyUnicode_AsUTF8(object->co_filename)) + " " +
                          PyUnicode_AsUTF8(object->co_qualname) + ": " + difference);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object->co_consts); ++i)
    if (PyObject* constant = PyTuple_GET_ITEM(object->co_consts, i); PyCode_Check(constant))
      reassemble_all(constant, count, differences);
}

TEST_F(BytecodeTest, StandardLibraryComesOutAsItWas) {
  const Ref names = run(R"(
import os, pathlib, warnings
warnings.simplefilter("ignore")
folder = pathlib.Path(os.__file__).parent
codes = []
for path in sorted(folder.rglob("*.py")):
    parts = path.relative_to(folder).parts
    # Test data holds files that are no Python on purpose.
    if "site-packages" in parts or "lib2to3" in parts or (len(parts) > 2 and parts[0] == "test"):
        continue
    try:
        codes.append(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        continue
)");
  ASSERT_TRUE(names);
  PyObject* codes = get(names, "codes");
  int count = 0;
  std::vector<std::string> differences;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(codes); ++i)
    reassemble_all(PyList_GET_ITEM(codes, i), count, differences);
  EXPECT_GT(count, 10'000);
  EXPECT_THAT(differences, ::testing::IsEmpty());
  RecordProperty("code_objects", count);
}

TEST_F(BytecodeTest, LongJumpsGetPrefixes) {
  const Ref names = run(R"(
source = "def f(x):\n  while x > 0:\n    x -= 1\n" + "    if x == 1000: x = 5\n" * 3000 + "  return x\n"
exec(source)
)");
  ASSERT_TRUE(names);
  PyObject* function = get(names, "f");
  EXPECT_EQ(reassemble(code_of(function)), "");
}

// The assembler, and not the caller, chooses the direction of a jump.
TEST_F(BytecodeTest, JumpsTurnRound) {
  const Ref names = run("def f(n):\n  while n > 3:\n    n -= 1\n  return n\n");
  ASSERT_TRUE(names);
  PyObject* function = get(names, "f");
  PyCodeObject* original = code_of(function);
  Result<Code> decoded = decode(original);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  // All instructions behind a jump over them, so that loops reach back from further away.
  Code moved;
  moved.first_line = decoded->first_line;
  std::vector<Instruction>& out = moved.instructions;
  const auto count = static_cast<std::int32_t>(decoded->instructions.size());
  out.push_back({RESUME, 0, kNoTarget, {}, 0});
  out.push_back({JUMP_FORWARD, 0, 3, {}, 0});
  out.push_back({JUMP_FORWARD, 0, 0, {}, 0});  // becomes a jump back
  for (Instruction instruction : decoded->instructions) {
    if (instruction.target != kNoTarget) instruction.target += 3;
    if (instruction.opcode == RESUME) instruction.opcode = NOP;
    out.push_back(instruction);
  }
  ASSERT_EQ(out.size(), static_cast<std::size_t>(count) + 3);
  Result<Ref> made = assemble(moved, CodeShape(original));
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Ref again = Ref::steal(PyFunction_New(made->get(), PyFunction_GET_GLOBALS(function)));
  const Ref result = Ref::steal(PyObject_CallFunction(again.get(), "i", 9));
  ASSERT_TRUE(result);
  EXPECT_EQ(PyLong_AsLong(result.get()), 3);
  const auto* bytes = reinterpret_cast<PyCodeObject*>(made->get());
  Result<Code> read = decode(const_cast<PyCodeObject*>(bytes));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->instructions[2].opcode, JUMP_BACKWARD);
  EXPECT_EQ(read->instructions[2].target, 0);
}

// 3.11 has backward conditions; 3.12 needs the condition turned round a jump.
TEST_F(BytecodeTest, ConditionalJumpsBack) {
  const Ref names = run("def f(n):\n  while True:\n    n -= 1\n    if n < 4: break\n  return n\n");
  ASSERT_TRUE(names);
  PyObject* function = get(names, "f");
  PyCodeObject* original = code_of(function);
  Result<Code> decoded = decode(original);
  ASSERT_TRUE(decoded.ok());
  // return n, then the whole function behind it: its `break` condition now jumps back.
  std::vector<Instruction> code;
  std::int32_t back = kNoTarget;
  for (std::size_t i = 0; i < decoded->instructions.size(); ++i)
    if (decoded->instructions[i].target > static_cast<std::int32_t>(i))
      back = static_cast<std::int32_t>(i);
  ASSERT_NE(back, kNoTarget);
  const auto back_at = static_cast<std::size_t>(back);
  Code moved;
  moved.first_line = decoded->first_line;
  auto& out = moved.instructions;
  out.push_back({RESUME, 0, kNoTarget, {}, 0});
  out.push_back({JUMP_FORWARD, 0, 4, {}, 0});
  out.push_back({LOAD_FAST, 0, kNoTarget, {}, 0});
  out.push_back({RETURN_VALUE, 0, kNoTarget, {}, 0});
  for (std::size_t i = 0; i < decoded->instructions.size(); ++i) {
    Instruction instruction = decoded->instructions[i];
    if (instruction.target != kNoTarget) instruction.target += 4;
    if (i == back_at) instruction.target = 2;
    if (instruction.opcode == RESUME) instruction.opcode = NOP;
    out.push_back(instruction);
  }
  Result<Ref> made = assemble(moved, CodeShape(original));
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Ref again = Ref::steal(PyFunction_New(made->get(), PyFunction_GET_GLOBALS(function)));
  const Ref result = Ref::steal(PyObject_CallFunction(again.get(), "i", 9));
  ASSERT_TRUE(result);
#ifdef POP_JUMP_IF_FALSE
  const bool returns_where_false = decoded->instructions[back_at].opcode == POP_JUMP_IF_FALSE;
#else
  const bool returns_where_false =
      decoded->instructions[back_at].opcode == POP_JUMP_FORWARD_IF_FALSE;
#endif
  EXPECT_EQ(PyLong_AsLong(result.get()), returns_where_false ? 8 : 3);
}

TEST_F(BytecodeTest, StackDepthsAgreeWithHandlers) {
  const Ref names =
      run("def f(x):\n  with x as y:\n    try:\n      return [y, g(y)]\n    except ValueError:\n"
          "      pass\n");
  ASSERT_TRUE(names);
  PyCodeObject* original = code_of(get(names, "f"));
  Result<Code> decoded = decode(original);
  ASSERT_TRUE(decoded.ok());
  Result<StackDepths> depths = find_stack_depths(*decoded);
  ASSERT_TRUE(depths.ok());
  EXPECT_LE(depths->maximum, original->co_stacksize);
  for (const ExceptionRange& range : decoded->exceptions)
    EXPECT_EQ(depths->before[static_cast<std::size_t>(range.target)],
              range.depth + (range.push_lasti ? 2 : 1));
}

TEST_F(BytecodeTest, DamagedTablesAreRefused) {
  EXPECT_FALSE(read_handlers("\xff").has_value());
  EXPECT_FALSE(read_locations("\x01", 1, 4).has_value());
  EXPECT_FALSE(read_locations("\xf7", 1, 4).has_value());
  Code code;
  code.instructions.push_back({255, 0, kNoTarget, {}, 0});
  EXPECT_EQ(find_stack_depths(code).status().code(), backplane::Code::kDataCorrupt);
}

TEST(Tables, HandlersComeBack) {
  const std::vector<HandlerEntry> entries{{0, 5, 70'000, 3, true}, {64, 4096, 1, 0, false}};
  const auto read = read_handlers(write_handlers(entries));
  ASSERT_TRUE(read.has_value());
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[0].target, 70'000);
  EXPECT_TRUE((*read)[0].push_lasti);
  EXPECT_EQ((*read)[1].end, 4096);
}

TEST(Tables, LocationsComeBack) {
  const std::vector<Location> given{
      {10, 10, 4, 9}, {10, 10, 100, 130}, {12, 12, 0, 127}, {11, 11, 3, 200}, {},
      {13, 15, 2, 1}, {14, 14, -1, -1},   {9, 9, 0, 1}};
  LocationWriter writer(10);
  std::vector<Location> expected;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const int units = static_cast<int>(i) * 5 + 1;
    writer.add(given[i], units);
    expected.insert(expected.end(), static_cast<std::size_t>(units), given[i]);
  }
  const auto read = read_locations(std::move(writer).take(), 10, expected.size());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, expected);
}

}  // namespace
}  // namespace backplane::cpython
