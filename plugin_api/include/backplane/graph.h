/* backplane/graph.h - the graph a plugin is asked about: flat arrays, read-only, borrowed.
 *
 * A bp_graph is a set of arrays that refer to each other by index. Nodes stand in topological
 * order. A subgraph handed to compile is again a bp_graph; indices differ, ids do not: node and
 * value ids are those of the graph shown to claims, and come back in errors, claims, profiles.
 * Use the bp_graph_* helpers: they step by the stride the host compiled with.
 */
#ifndef BACKPLANE_GRAPH_H_
#define BACKPLANE_GRAPH_H_

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A dimension, a stride (in elements) or an integer attribute that depends on sizes: >= 0 is the
 * number; < 0 is the dim class with index -1 - dim. */
typedef int64_t bp_dim;

/* A dim class: all sizes, strides and integers of the graph that are equal in every call. The host
 * supplies the value of every class at execute, in table order; a plugin never infers sizes. Classes
 * of offsets have neither name nor expression, and their range says nothing.
 * (element) */
typedef struct bp_dim_class {
  int64_t min, max; /* inclusive range of the values seen or promised; min >= 2 where known */
  int64_t divisor;  /* every value is a multiple of it; >= 1 */
  int64_t hint;     /* a typical value; estimates are made for it */
  bp_string name;
  bp_string expression; /* advisory, over other classes' names: "s0*s1"; empty: free */
} bp_dim_class;

/* Layouts. Unknown kind: refuse the node. */
typedef uint32_t bp_layout_kind;
enum {
  BP_LAYOUT_STRIDED = 1, /* strides as given */
  BP_LAYOUT_ANY = 2,     /* the host asks the plugin to choose; never reaches execute */
  BP_LAYOUT_OPAQUE = 3   /* layout_id is the plugin's; layout_bytes says how large */
};

/* layout_id is a name, not a handle: a plugin understands it without state, in another process
 * and after a restart, as long as its requirement record (plugin.h) still says "compatible".
 * Equal ids with equal dtype and dims are equal layouts. (frozen) */
typedef struct bp_layout {
  bp_layout_kind kind;
  uint32_t reserved;
  uint64_t layout_id;
} bp_layout;

/* bp_value.flags */
#define BP_VALUE_CONSTANT (UINT64_C(1) << 0) /* known at compile time: data is set */
#define BP_VALUE_STATIC (UINT64_C(1) << 1) /* a weight: changes rarely */
#define BP_VALUE_HOST_SCALAR (UINT64_C(1) << 2) /* one element, bound by value at execute */

/* A tensor value. Results of views name what they are views of, and where in it they start; their
 * dims and strides say the rest, so that a plugin knows no view by its operator. (element) */
typedef struct bp_value {
  uint32_t id;
  uint32_t rank;
  uint64_t flags;
  bp_dtype dtype;
  uint32_t first_dim;    /* into bp_graph.dims; strides follow in bp_graph.strides */
  uint32_t producer;     /* node index, BP_NONE for inputs and constants */
  uint32_t alias_of;     /* value index whose memory this one shares, or BP_NONE */
  uint32_t reserved;
  bp_dim alias_offset;   /* elements of alias_of from its start to the start of this one */
  bp_layout layout;
  const void* data;      /* CONSTANT: dense, little-endian (nullable otherwise) */
  uint64_t data_bytes;
} bp_value;

/* Attribute kinds. Unknown: refuse the node. */
typedef uint32_t bp_attribute_kind;
enum {
  BP_ATTRIBUTE_NONE = 1, /* the operator's argument was None */
  BP_ATTRIBUTE_BOOL = 2,
  BP_ATTRIBUTE_INT = 3,
  BP_ATTRIBUTE_FLOAT = 4,
  BP_ATTRIBUTE_STRING = 5,
  BP_ATTRIBUTE_DTYPE = 6,
  BP_ATTRIBUTE_INTS = 7,
  BP_ATTRIBUTE_FLOATS = 8,
  BP_ATTRIBUTE_BOOLS = 9 /* int64_t each */
};

/* Which field is set follows from kind. Integer arguments may be negative, so whether one is a
 * number or a dim class (stored as -1 - index) is said apart. (element) */
typedef struct bp_attribute {
  bp_string name;
  bp_attribute_kind kind;
  bp_dtype dtype;
  int64_t integer;         /* BOOL, INT */
  double real;             /* FLOAT */
  bp_string text;          /* STRING */
  const int64_t* integers; /* INTS, BOOLS (nullable otherwise) */
  const double* reals;     /* FLOATS (nullable otherwise) */
  size_t count;
  uint32_t is_class; /* INT: integer is a dim class */
  uint32_t reserved;
  const uint8_t* class_flags; /* INTS: per element, 1 for a dim class; (nullable): none is */
} bp_attribute;

/* An operator that occurs in this graph. A plugin compares names once per entry here, not once
 * per node. (element) */
typedef struct bp_op {
  bp_string name;   /* "aten.add.Tensor" */
  uint32_t version; /* of its meaning in the op table; unknown: refuse its nodes */
  uint32_t reserved;
} bp_op;

/* Operands and results are runs in bp_graph.indices; an absent optional operand is BP_NONE. The
 * one operand that is a list, where an op has one (aten.cat, aten.index.Tensor), is flattened in
 * place: operands [list_first, list_first + list_count) of the node; list_count is 0 without one.
 * A result that nobody reads is BP_NONE as well. An operator's non-tensor arguments are its attributes
 * by the schema's names; one that is left out has the schema's default. Numbers that the schema takes
 * as tensors are constants of rank 0. Where an attribute counts dims, negative ones count from the end,
 * and a tensor of rank 0 takes -1 and 0. Complex numbers are text, "complex:re,im". (element) */
typedef struct bp_node {
  uint32_t id;
  uint32_t op; /* into bp_graph.ops */
  uint32_t first_operand, operand_count;
  uint32_t first_result, result_count;
  uint32_t list_first, list_count;
  uint32_t first_attribute, attribute_count;
  uint64_t effects; /* 0: pure; else BP_EFFECT_*; unknown bits: refuse the node */
  bp_string location; /* "model.py:12", for messages */
} bp_node;

#define BP_EFFECT_RANDOM (UINT64_C(1) << 0)
#define BP_EFFECT_MUTATES (UINT64_C(1) << 1)

/* (grows) */
typedef struct bp_graph {
  size_t struct_size;
  bp_string name;
  const bp_node* nodes;
  size_t node_count, node_stride;
  const bp_value* values;
  size_t value_count, value_stride;
  const bp_attribute* attributes;
  size_t attribute_count, attribute_stride;
  const bp_op* ops;
  size_t op_count, op_stride;
  const bp_dim_class* dim_classes;
  size_t dim_class_count, dim_class_stride;
  const uint32_t* indices; /* operands and results of all nodes: value indices */
  size_t index_count;
  const bp_dim* dims; /* shapes of all values */
  const bp_dim* strides; /* same positions; read for BP_LAYOUT_STRIDED only */
  size_t dim_count;
  const uint32_t* inputs; /* value indices, in binding order */
  size_t input_count;
  const uint32_t* outputs;
  size_t output_count;
} bp_graph;

static inline const void* bp_at(const void* first, size_t stride, size_t index) {
  return (const char*)first + stride * index;
}
static inline const bp_node* bp_graph_node(const bp_graph* graph, size_t index) {
  return (const bp_node*)bp_at(graph->nodes, graph->node_stride, index);
}
static inline const bp_value* bp_graph_value(const bp_graph* graph, size_t index) {
  return (const bp_value*)bp_at(graph->values, graph->value_stride, index);
}
static inline const bp_attribute* bp_graph_attribute(const bp_graph* graph, size_t index) {
  return (const bp_attribute*)bp_at(graph->attributes, graph->attribute_stride, index);
}
static inline const bp_op* bp_graph_op(const bp_graph* graph, size_t index) {
  return (const bp_op*)bp_at(graph->ops, graph->op_stride, index);
}
static inline const bp_dim_class* bp_graph_dim_class(const bp_graph* graph, size_t index) {
  return (const bp_dim_class*)bp_at(graph->dim_classes, graph->dim_class_stride, index);
}

/* Why a node is refused. Unknown: as BP_REFUSED_OTHER. */
typedef uint32_t bp_refusal;
enum {
  BP_REFUSED_OTHER = 1,
  BP_REFUSED_OP = 2,
  BP_REFUSED_DTYPE = 3,
  BP_REFUSED_SHAPE = 4,
  BP_REFUSED_DYNAMIC = 5,
  BP_REFUSED_LAYOUT = 6,
  BP_REFUSED_ATTRIBUTE = 7,
  BP_REFUSED_MEMORY = 8,
  BP_REFUSED_COST = 9 /* could, but slower than the fallback */
};

/* bp_claim.flags */
/* every convex subset is claimed too; cost scales by nodes */
#define BP_CLAIM_DIVISIBLE (UINT64_C(1) << 0)
/* the numbers are set; else the host's cost model is used */
#define BP_CLAIM_ESTIMATED (UINT64_C(1) << 1)

/* A set of nodes the plugin takes. A promise: compile of it (of any convex subset when
 * DIVISIBLE) with layouts ANY or dense, default memory kinds and sizes within the classes' ranges
 * fails only with OUT_OF_MEMORY, RESOURCE_BUSY, DEVICE_LOST, CANCELLED or TIMEOUT. Sets may
 * overlap: the host takes at most one of two overlapping claims for a node. (grows) */
typedef struct bp_claim {
  size_t struct_size;
  const uint32_t* node_ids;
  size_t node_count;
  uint64_t flags;
  double time_ns; /* one execution at the hints, inputs and outputs resident */
  double launch_ns; /* the part of time_ns that does not shrink with sizes */
  uint64_t workspace_bytes;
  uint64_t read_bytes, written_bytes;
} bp_claim;

#ifdef __cplusplus
}
#endif
#endif /* BACKPLANE_GRAPH_H_ */
