#include "core/torch/frames/frame_effects.h"

#include <opcode.h>

#include "core/cpython/bytecode/opcodes.h"

namespace backplane::call {

namespace {

using capture::Effect;
using capture::EffectKind;
using cpython::Emitted;
using cpython::Ref;

class Emitter {
 public:
  // `sources`: of the entry's guards; null where no effect follows.
  Emitter(PyObject* globals, guards::Sources* sources, std::vector<Ref>& state,
          std::vector<Emitted>& out)
      : globals_(globals), sources_(sources), state_(state), out_(out) {}

  Status emit(const Effect& effect) {
    switch (effect.kind) {
      case EffectKind::kAttribute:
        return attribute(effect);
      case EffectKind::kItem:
        // Constants of code are out of the garbage collector's sight.
        if (is_of_program(effect.key)) take(effect.key);
        take(effect.owner);
        if (effect.value) take(effect.value);
        if (!is_of_program(effect.key)) add(LOAD_CONST, 0, effect.key);
        add(effect.value ? STORE_SUBSCR : DELETE_SUBSCR);
        return {};
      case EffectKind::kGlobal:
        return global(effect);
      case EffectKind::kCell: {
        const Ref content = Ref::steal(PyUnicode_InternFromString("cell_contents"));
        take(effect.owner);
        if (effect.value) take(effect.value);
        add(effect.value ? STORE_ATTR : DELETE_ATTR, 0, {}, content);
        return {};
      }
      case EffectKind::kList:
        take(effect.owner);
        take(effect.value);
        add(LOAD_CONST, 0, Ref::borrow(Py_None));
        add(LOAD_CONST, 0, Ref::borrow(Py_None));
        add(BUILD_SLICE, 2);
        add(STORE_SUBSCR);
        return {};
      case EffectKind::kAppend:
        take(effect.owner);
        take(effect.value);
        add(SWAP, 2);
        add(LIST_APPEND, 1);
        add(POP_TOP);
        return {};
    }
    return {};
  }

  // Calls `function` with the `count` values on the stack, the topmost as the last argument.
  Status call(std::string name, FrameFunction function, int count) {
    const Ref callable = Ref::steal(make_frame_callable(std::move(name), std::move(function)));
    if (!callable) return cpython::take_python_error("Making a callable");
    add(PUSH_NULL);
    if (count > 0) add(SWAP, count + 1);
    add(LOAD_CONST, 0, callable);
    if (count > 0) add(SWAP, count + 1);
    for (const int opcode : cpython::call_opcodes()) add(opcode, count);
    add(POP_TOP);
    return {};
  }

 private:
  void take(const Ref& value) { state_.push_back(value); }
  static bool is_of_program(const Ref& key) { return PyObject_IS_GC(key.get()); }
  void add(int opcode, int argument = 0, Ref constant = {}, Ref name = {}) {
    out_.push_back({opcode, argument, std::move(constant), std::move(name)});
  }

  Status attribute(const Effect& effect) {
    take(effect.owner);
    if (effect.value) take(effect.value);
    if (Py_TYPE(effect.owner.get())->tp_setattro == PyObject_GenericSetAttr) {
      add(effect.value ? STORE_ATTR : DELETE_ATTR, 0, {}, effect.key);
      return {};
    }
    // The class's own __setattr__ was captured; this is what came out of it. Two values lie the
    // other way round behind the swaps.
    const Ref key = effect.key;
    const bool is_set = static_cast<bool>(effect.value);
    return call(
        std::string("__set_attribute_") + PyUnicode_AsUTF8(key.get()),
        [key, is_set](PyObject* const* values, std::size_t) -> PyObject* {
          PyObject* owner = values[is_set ? 1 : 0];
          const int status =
              PyObject_GenericSetAttr(owner, key.get(), is_set ? values[0] : nullptr);
          return status == 0 ? Py_NewRef(Py_None) : nullptr;
        },
        is_set ? 2 : 1);
  }

  Status global(const Effect& effect) {
    if (effect.value) take(effect.value);
    if (effect.owner.get() == globals_) {
      add(effect.value ? STORE_GLOBAL : DELETE_GLOBAL, 0, {}, effect.key);
      return {};
    }
    PyObject* const owner = effect.owner.get();
    sources_->add(guards::SourceKind::kConstant, guards::kNoSource, owner);  // which holds it
    const Ref key = effect.key;
    const bool is_set = static_cast<bool>(effect.value);
    return call(
        std::string("__set_global_") + PyUnicode_AsUTF8(key.get()),
        [owner, key, is_set](PyObject* const* values, std::size_t) -> PyObject* {
          const int status = is_set ? PyDict_SetItem(owner, key.get(), values[0])
                                    : PyDict_DelItem(owner, key.get());
          return status == 0 ? Py_NewRef(Py_None) : nullptr;
        },
        is_set ? 1 : 0);
  }

  PyObject* globals_;
  guards::Sources* sources_;
  std::vector<Ref>& state_;
  std::vector<Emitted>& out_;
};

}  // namespace

Status emit_effects(const capture::Effects& effects, const HookStop& stop, PyObject* globals,
                    guards::Sources& sources, std::vector<Ref>& state, std::vector<Emitted>& out) {
  Emitter emitter(globals, &sources, state, out);
  const auto is_behind = [&](const Effect& effect) {
    return stop.raise && effect.operators >= stop.operators;
  };
  for (const Effect& effect : effects.all()) {
    if (!is_behind(effect)) {
      BP_RETURN_IF_ERROR(emitter.emit(effect));
    } else if (effect.earlier) {
      Effect first = effect;
      first.value = effect.earlier;
      BP_RETURN_IF_ERROR(emitter.emit(first));
    }
  }
  if (!stop.raise || effects.all().empty()) return {};
  BP_RETURN_IF_ERROR(emitter.call("__raise_of_hook", stop.raise, 0));
  for (const Effect& effect : effects.all())
    if (is_behind(effect)) BP_RETURN_IF_ERROR(emitter.emit(effect));
  return {};
}

Status emit_autocast(const capture::AutocastState& autocast, std::vector<Emitted>& out) {
  std::vector<Ref> nothing;
  return Emitter(nullptr, nullptr, nothing, out)
      .call(
          "__set_autocast",
          [autocast](PyObject* const*, std::size_t) -> PyObject* {
            autocast.set();
            return Py_NewRef(Py_None);
          },
          0);
}

}  // namespace backplane::call
