#include "core/torch/record/operator_info.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "core/base/fork.h"
#include "core/torch/bridge/live_operator.h"
#include "core/torch/record/attribute.h"
#include "core/torch/record/shape_rules.h"

namespace backplane::record {

namespace {

const c10::Type& strip_optional(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType)
    return *type.castRaw<c10::OptionalType>()->getElementType();
  return type;
}

ArgumentKind kind_of(const c10::Type& declared) {
  const c10::Type& type = strip_optional(declared);
  if (type.kind() == c10::TypeKind::TensorType) return ArgumentKind::kTensor;
  if (type.kind() != c10::TypeKind::ListType) return ArgumentKind::kPlain;
  const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
  if (element.kind() == c10::TypeKind::TensorType) return ArgumentKind::kTensorList;
  if (strip_optional(element).kind() == c10::TypeKind::TensorType)
    return ArgumentKind::kOptionalTensorList;
  return ArgumentKind::kPlain;
}

// "aten::add", "Tensor" is aten.add.Tensor in the IR.
std::string ir_name(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  if (const std::size_t colons = name.find("::"); colons != std::string::npos)
    name.replace(colons, 2, ".");
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  return name;
}

constexpr std::array kDependOnLayout{
    std::string_view("aten.as_strided"),
    std::string_view("aten.contiguous"),
    std::string_view("aten.flatten.using_ints"),
    std::string_view("aten.ravel"),
    std::string_view("aten.reshape"),
    std::string_view("aten.reshape_as"),
    std::string_view("aten.to.device"),
    std::string_view("aten.to.dtype"),
    std::string_view("aten.to.dtype_layout"),
    std::string_view("aten.to.other"),
    std::string_view("aten.view"),
    std::string_view("aten.view_as"),
};

// Their shape depends on the shapes and numbers given alone, zeros are valid values for them, and
// what PyTorch has for their shape is wrong or refuses.
constexpr std::array kRunOnZeros{
    std::string_view("aten._ctc_loss"),
    std::string_view("aten._embedding_bag"),
    std::string_view("aten._embedding_bag_forward_only"),
    std::string_view("aten._fft_c2c"),  // strides as the library of transforms has them
    std::string_view("aten._fft_c2r"),
    std::string_view("aten._fft_r2c"),
    std::string_view("aten._native_multi_head_attention"),  // weights only where they are asked for
    std::string_view("aten._stack"),
    std::string_view("aten._weight_norm_interface"),  // the norms of short floats are float32
    std::string_view("aten._weight_norm_interface_backward"),
    std::string_view("aten.fractional_max_pool3d"),
    std::string_view("aten.max_pool3d_with_indices"),  // strides of one sample, channels last
    std::string_view("aten.linalg_eig"),               // its vectors are columns
    std::string_view("aten.isin.Scalar_Tensor"),  // PyTorch's own rule gives no element for one
    std::string_view("aten.multi_margin_loss"),
    std::string_view("aten.multilabel_margin_loss_forward"),
};

// An operator of PyTorch's own that no shape function goes with.
bool has_cpu_kernel_alone(const c10::OperatorHandle& handle) {
  const auto has = [&](c10::DispatchKey key) { return handle.hasKernelForDispatchKey(key); };
  return handle.schema().name().starts_with("aten::") && has(c10::DispatchKey::CPU) &&
         !has(c10::DispatchKey::Meta) && !has(c10::DispatchKey::CompositeImplicitAutograd) &&
         !has(c10::DispatchKey::CompositeExplicitAutograd) &&
         !has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// PyTorch lists the origin of each kernel, and a Python one by its file.
bool has_python_meta(const c10::OperatorHandle& handle) {
  const std::string table = handle.dumpComputedTable();
  const std::size_t meta = table.find("\nMeta: ");
  if (meta == std::string::npos) return false;
  return table.substr(meta, table.find('\n', meta + 1) - meta).find(".py:") != std::string::npos;
}

// A conjugation, negation or zero that PyTorch leaves pending on the tensor; values of a graph have
// no such bits. Their strides are kept, where they are dense.
constexpr std::array<std::pair<std::string_view, const char*>, 3> kSubstitutes{{
    {"aten._conj", "aten::_conj_physical"},
    {"aten._neg_view", "aten::neg"},
    {"aten._efficientzerotensor", "aten::zeros"},
}};

const OperatorInfo* find_substitute(std::string_view name) {
  for (const auto& [from, to] : kSubstitutes)
    if (from == name) {
      const auto handle = c10::Dispatcher::singleton().findSchema({to, ""});
      return handle ? &operator_info(*handle) : nullptr;
    }
  return nullptr;
}

constexpr std::array kIndexing{"aten::index",
                               "aten::index_put",
                               "aten::index_put_",
                               "aten::_index_put_impl",
                               "aten::_index_put_impl_",
                               "aten::_unsafe_index",
                               "aten::_unsafe_index_put"};

constexpr std::array kOpaque{std::string_view("aten.to_mkldnn"),
                             std::string_view("aten.mkldnn_reorder_conv2d_weight"),
                             std::string_view("aten.mkldnn_reorder_conv3d_weight"),
                             std::string_view("aten._embedding_bag_sparse_backward")};

constexpr std::array kAskForMemory{std::string_view("aten.is_set_to"),
                                   std::string_view("aten._has_same_storage_numel")};

constexpr std::array kRefuseAnyValues{
    std::string_view("aten.binary_cross_entropy"), std::string_view("aten.histc"),
    std::string_view("aten.quantile"), std::string_view("aten.nanquantile"),
    std::string_view("aten.masked_scatter")};

RefusedValues refused_values_of(const OperatorInfo& info) {
  if (info.op->is_gradient) return RefusedValues::kNone;
  if (!info.op->known || std::ranges::find(kRefuseAnyValues, info.name) != kRefuseAnyValues.end())
    return RefusedValues::kAny;
  const auto has = [&](std::string_view part) { return info.name.find(part) != std::string::npos; };
  switch (info.op->op_class) {
    case ir::OpClass::kOther:  // decompositions of matrices
      return RefusedValues::kAny;
    case ir::OpClass::kIndexing:
      return RefusedValues::kOfIntegerOperands;
    case ir::OpClass::kReduction:
      return has("loss") || has("segment") ? RefusedValues::kOfIntegerOperands
                                           : RefusedValues::kNone;
    case ir::OpClass::kPooling:
      return has("unpool") ? RefusedValues::kOfIntegerOperands : RefusedValues::kNone;
    case ir::OpClass::kPointwise: {
      const bool divides = info.schema_name == "aten::div" || info.schema_name == "aten::fmod" ||
                           info.schema_name == "aten::floor_divide" ||
                           info.schema_name == "aten::remainder";
      return divides ? RefusedValues::kOfIntegerResults : RefusedValues::kNone;
    }
    default:
      return RefusedValues::kNone;
  }
}

// A structured kernel's shape function is its own check. Elementwise operators broadcast, and what
// has a row in the table of operands has no other.
bool asks_kernel_for_shapes(const OperatorInfo& info) {
  const auto has = [&](c10::DispatchKey key) { return info.handle.hasKernelForDispatchKey(key); };
  const bool is_checked = info.fit || info.route == ShapeRoute::kRunOnZeros ||
                          has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  const bool runs_on_cpu =
      has(c10::DispatchKey::CPU) || has(c10::DispatchKey::CompositeExplicitAutograd);
  if (is_checked || !runs_on_cpu || !info.gives_new_values || info.depends_on_values) return false;
  const ir::OpClass kind = info.op->op_class;
  return info.op->known && kind != ir::OpClass::kPointwise && kind != ir::OpClass::kView &&
         kind != ir::OpClass::kFactory;
}

}  // namespace

DeviceMix device_mix(std::string_view schema_name) {
  // Steps of optimizers are kept on the CPU beside parameters of any device.
  if (schema_name.starts_with("aten::_fused_") || schema_name.starts_with("aten::_foreach_") ||
      schema_name == "aten::copy" || schema_name == "aten::copy_")
    return DeviceMix::kAny;
  const bool indexes =
      std::ranges::any_of(kIndexing, [&](const char* one) { return schema_name == one; });
  return indexes ? DeviceMix::kIndices : DeviceMix::kNone;
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& h)
    : handle(h),
      schema_name(h.schema().name()),
      overload(h.schema().overload_name()),
      name(ir_name(h.schema())) {
  const c10::FunctionSchema& schema = handle.schema();
  op = ir::find_or_intern_op(name);
  for (const c10::Argument& argument : schema.arguments()) {
    const auto position = static_cast<int>(arguments.size());
    arguments.push_back(kind_of(*argument.real_type()));
    is_number.push_back(is_scalar(argument));
    list_count += arguments.back() == ArgumentKind::kTensorList ||
                  arguments.back() == ArgumentKind::kOptionalTensorList;
    if (argument.name() == "device") device_argument = position;
    if (argument.name() == "dtype") dtype_argument = position;
    if (argument.name() == "generator") generator_argument = position;
    out_count += argument.is_out();
    writes = writes || (argument.alias_info() && argument.alias_info()->isWrite());
  }
  changes_layout = handle.hasTag(at::Tag::inplace_view);
  depends_on_layout =
      std::find(kDependOnLayout.begin(), kDependOnLayout.end(), name) != kDependOnLayout.end();
  is_identity = name == "aten.detach" || name == "aten.alias" || name == "aten.lift" ||
                name == "aten.lift_fresh";
  const auto has = [&](c10::DispatchKey key) { return handle.hasKernelForDispatchKey(key); };
  is_composite = has(c10::DispatchKey::CompositeImplicitAutograd) && !has(c10::DispatchKey::CPU) &&
                 !has(c10::DispatchKey::Meta);
  refuses_casts = writes && !is_composite && schema_name != "aten::copy_";
  bool runs_on_zeros = std::find(kRunOnZeros.begin(), kRunOnZeros.end(), name) != kRunOnZeros.end();
  depends_on_values = !runs_on_zeros && (handle.hasTag(at::Tag::data_dependent_output) ||
                                         handle.hasTag(at::Tag::dynamic_output_shape));
  is_random =
      handle.hasTag(at::Tag::nondeterministic_seeded) || op->op_class == ir::OpClass::kRandom;
  runs_on_zeros = runs_on_zeros || (has_cpu_kernel_alone(handle) && !depends_on_values &&
                                    !is_random && !writes && !name.starts_with("aten._to_sparse"));
  casts_inside = name == "aten.linalg_pinv.atol_rtol_tensor" || name == "aten._trilinear" ||
                 name == "aten._euclidean_dist";
  gives_new_values = !is_random && std::ranges::none_of(schema.returns(), [](const auto& result) {
    return result.alias_info() != nullptr;
  });

  device_mix = record::device_mix(schema_name);
  refused_values = refused_values_of(*this);
  is_pointwise = handle.hasTag(at::Tag::pointwise) || name == "aten.copy_" ||
                 name.starts_with("aten.floor_divide") || name.starts_with("aten.rsub");
  asks_for_memory = std::ranges::find(kAskForMemory, name) != kAskForMemory.end();
  is_opaque = std::ranges::find(kOpaque, name) != kOpaque.end();
  if (name == "aten._embedding_bag_backward")
    sparse_argument = handle.schema().argumentIndexWithName("sparse").value_or(-1);
  reads_offset = schema_name.starts_with("aten::as_strided") || name == "aten.view.dtype" ||
                 name == "aten.view_as_complex" || name == "aten.sym_storage_offset" ||
                 name == "aten.storage_offset";
  substitute = find_substitute(name);
  check = find_argument_check(name);
  fit = find_operand_fit(name);
  rule = find_shape_rule(name);
  if (rule)
    route = ShapeRoute::kRule;
  else if (runs_on_zeros)
    route = ShapeRoute::kRunOnZeros;
  else if (has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
    route = ShapeRoute::kStructured;
  else if (has(c10::DispatchKey::CompositeExplicitAutograd) && !writes &&
           (schema_name.starts_with("aten::") || !has(c10::DispatchKey::Meta)))
    route = ShapeRoute::kComposite;  // a program's own kernel may do more than compute
  leaves_shapes_to_autograd = op->is_gradient && !fit && route != ShapeRoute::kStructured &&
                              op->op_class != ir::OpClass::kPointwise;
  asks_for_shapes = asks_kernel_for_shapes(*this);
  if (route != ShapeRoute::kStructured) meta_is_python = has_python_meta(handle);
}

const OperatorInfo& operator_info(const c10::OperatorHandle& handle) {
  // Never destroyed: threads may record while the process ends. Keyed by the schema's address,
  // which stays while the operator is registered; another operator may get it later, of the same
  // name as well.
  static auto& mutex = fork_mutex<std::shared_mutex>();
  static auto& infos = *new std::unordered_map<const c10::FunctionSchema*,
                                               std::vector<std::unique_ptr<OperatorInfo>>>;
  const c10::FunctionSchema& schema = handle.schema();
  const std::uint64_t removals = bridge::operator_removals();
  const auto is_of = [&](const std::unique_ptr<OperatorInfo>& info) {
    return info->schema_name == schema.name() && info->overload == schema.overload_name() &&
           (info->removals == removals || info->schema_name.starts_with("aten::"));
  };
  {
    const std::shared_lock<std::shared_mutex> lock(mutex);
    if (const auto found = infos.find(&schema); found != infos.end())
      for (const auto& info : found->second)
        if (is_of(info)) return *info;
  }
  auto made = std::make_unique<OperatorInfo>(handle);
  made->removals = removals;
  const std::unique_lock<std::shared_mutex> lock(mutex);
  return *infos[&schema].emplace_back(std::move(made));
}

}  // namespace backplane::record
