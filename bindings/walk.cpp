// The walk backwards through a gradient's records.
#include "bindings/walk.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bindings/rules.h"

namespace spmdx {
namespace {

using Object = py::object;

class Walk {
 public:
    Walk(const py::sequence& outputs, const py::sequence& cotangents, const py::sequence& leaves,
         const Object& done)
        : off_(nullptr), done_(done) {
        for (const py::handle leaf : leaves) wanted_.push_back(Node{leaf.ptr()}.order());
        order_ = wanted_;
        std::sort(order_.begin(), order_.end());
        const size_t n = std::min(outputs.size(), cotangents.size());
        for (size_t k = 0; k < n; ++k) {
            const Object out = outputs[k], g = cotangents[k];
            if (Py_TYPE(out.ptr()) == records.watched && !g.is_none() && matters(Node{out.ptr()}.order()))
                give(out.ptr(), g);
        }
        PyObject* state;
        if (PyContextVar_Get(records.state, nullptr, &state) < 0) throw py::error_already_set();
        const auto kept = py::reinterpret_steal<Object>(state);
        if (PyObject_IsTrue(slot(state, records.depth)) == 0 && slot(state, records.dry) == Py_None)
            rank_ = py::reinterpret_borrow<Object>(slot(state, records.rank));
        if (!done_.is_none()) look_ahead(outputs);
    }

    py::list run() {
        while (!queue_.empty()) {
            if (!look_after()) throw py::error_already_set();
            while (!uses_.empty() && uses_.back().first > queue_.front()) hand_over();
            std::pop_heap(queue_.begin(), queue_.end());
            const auto at = held_.find(queue_.back());
            queue_.pop_back();
            const Object x = std::move(at->second.node), g = std::move(at->second.g);
            held_.erase(at);
            step(Node{x.ptr()}, g);
        }
        py::list found(wanted_.size());
        for (size_t k = 0; k < wanted_.size(); ++k) {
            const auto at = held_.find(wanted_[k]);
            found[k] = at == held_.end() ? Object(py::none()) : at->second.g;
        }
        return found;
    }

 private:
    struct Held {
        Object node, g;
        bool own = false;  // made by an operation that can add to it, and nothing else has it
    };
    const Notes off_;                         // what is called in here is none of an outer rule's calls
    std::unordered_map<int64_t, Held> held_;  // cotangents, by the place of their node in the order of making
    std::vector<int64_t> queue_;           // places of those whose rules are to run: a heap, the latest first
    std::vector<int64_t> wanted_, order_;  // the leaves' places, as given and sorted
    Object rank_;  // null where records are made, or nothing is computed: there no rule is made again

    const Object done_;  // told of a leaf's gradient when nothing is to be added to it any more; or None
    std::vector<std::pair<int64_t, size_t>> uses_;  // of leaves that it waits for: the earliest use; sorted

    // Finds the earliest record that uses each leaf: once the walk is past it, the leaf's gradient is whole.
    void look_ahead(const py::sequence& outputs) {
        std::unordered_map<int64_t, int64_t> earliest;
        std::unordered_set<int64_t> seen;
        std::vector<PyObject*> stack;
        const auto come_to = [&](PyObject* x, int64_t order) {
            if (seen.insert(order).second) stack.push_back(x);
        };
        for (const py::handle out : outputs)
            if (Py_TYPE(out.ptr()) == records.watched) come_to(out.ptr(), Node{out.ptr()}.order());
        while (!stack.empty()) {
            const Node node{stack.back()};
            stack.pop_back();
            if (node.rule() == Py_None) continue;
            PyObject* const inputs = node.inputs();
            for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
                PyObject* const x = PyTuple_GET_ITEM(inputs, i);
                if (!is_node(x)) continue;
                const int64_t order = Node{x}.order();
                if (!matters(order)) continue;
                const auto at = earliest.emplace(order, node.order()).first;
                at->second = std::min(at->second, node.order());
                come_to(x, order);
            }
        }
        for (size_t k = 0; k < wanted_.size(); ++k)
            if (const auto at = earliest.find(wanted_[k]); at != earliest.end())
                uses_.emplace_back(at->second, k);
        std::sort(uses_.begin(), uses_.end());
    }

    void hand_over() {
        const size_t k = uses_.back().second;
        uses_.pop_back();
        const auto at = held_.find(wanted_[k]);
        if (at == held_.end()) return;
        const Object g = std::move(at->second.g);
        held_.erase(at);
        done_(k, g);
    }

    bool matters(int64_t order) const { return order_.empty() ? order >= 0 : order >= order_.front(); }

    void give(PyObject* x, const Object& g) {
        const int64_t order = Node{x}.order();
        Held& held = held_[order];
        if (held.g) {
            held.g = called(ways.joined, {x, held.g.ptr(), g.ptr()});
            return;
        }
        held.g = g;
        if (std::binary_search(order_.begin(), order_.end(), order)) return;
        held.node = py::reinterpret_borrow<Object>(x);
        queue_.push_back(order);
        std::push_heap(queue_.begin(), queue_.end());
    }

    void step(const Node& node, Object g) {
        if (node.rule() == Py_None) return;
        if (!node.bundle && slot(spec_of(g.ptr()), records.mesh) != slot(spec_of(node.x), records.mesh))
            g = called(ways.settled, {node.x, g.ptr()});
        PyObject* const inputs = node.inputs();
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
            PyObject* const x = PyTuple_GET_ITEM(inputs, i);
            if (!is_node(x) || !matters(Node{x}.order())) continue;
            if (Py_TYPE(x) == records.watched && !is_smooth(x)) continue;
            const int64_t order = Node{x}.order();
            auto before = held_.find(order);
            if (before != held_.end() && before->second.own && added(node, before->second.g, i, g)) continue;
            const auto [found, adds] = gradient(node, i, g.ptr(), rank_.ptr());
            if (found.is_none()) continue;
            give(x, found);
            before = held_.find(order);
            if (adds && before->second.g.is(found)) before->second.own = true;
        }
    }

    // Whether the operation has added this gradient to the one before, in its place.
    static bool added(const Node& node, const Object& before, Py_ssize_t i, const Object& g) {
        const Object onto = py::handle(node.rule()).attr("onto");
        if (onto.is_none()) return false;
        const auto inputs = py::reinterpret_borrow<py::tuple>(node.inputs());
        const auto statics = py::reinterpret_borrow<Object>(node.statics());
        return is_true(onto(before, i, g, *inputs, **statics));
    }
};

py::list walk(const py::sequence& outputs, const py::sequence& cotangents, const py::sequence& leaves,
              const Object& done) {
    return Walk(outputs, cotangents, leaves, done).run();
}

void tell_walk(const py::type& bundle, const py::type& operation, const Object& joined, const Object& settled,
               const Object& gradient) {
    ways.rule = offset_of(bundle, "rule");
    ways.inputs = offset_of(bundle, "inputs");
    ways.statics = offset_of(bundle, "static");
    ways.order = offset_of(bundle, "order");
    ways.joined = Object(joined).release().ptr();
    ways.settled = Object(settled).release().ptr();
    ways.gradient = Object(gradient).release().ptr();
    ways.operation = reinterpret_cast<PyTypeObject*>(Object(operation).release().ptr());
    ways.bundle = reinterpret_cast<PyTypeObject*>(Object(bundle).release().ptr());
}

}  // namespace

void bind_walk(py::module_& m) {
    m.def("tell_walk", &tell_walk, py::arg("bundle"), py::arg("operation"), py::arg("joined"),
          py::arg("settled"), py::arg("gradient"),
          "The types of bundles and operations, and what Python does on a walk backwards: joined(node, "
          "before, g) adds two cotangents, settled(node, g) brings one to its node's mesh, gradient(node, i, "
          "g) asks a rule.");
    m.def("walk", &walk, py::arg("outputs"), py::arg("cotangents"), py::arg("leaves"),
          py::arg("done") = py::none(),
          "The gradients of the leaves, given those of the outputs; None for a leaf that no output depends "
          "on. With done(k, g), gradients are handed to it as soon as they are whole, where that is before "
          "the end, and are None in the list.");
    m.def("keep_constant", &keep_constant, py::arg("array"),
          "An array that gradient rules may be given again and again: it is the same one for ever.");
    m.def("forget_rules", &forget_rules, "Forget what gradient rules called.");
}

}  // namespace spmdx
