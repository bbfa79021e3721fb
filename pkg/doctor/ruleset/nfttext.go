package ruleset

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// templates has what a Result shows of an expression or a statement, much as nft
// prints it: "$key" stands for the text of that part. Without a template, operation shows
// the name and the parts that identify most expressions.
var templates = map[string]string{
	"match": "$left $op $right", "vmap": "$key vmap $data", "map": "$key map $data", "mangle": "$key set $value", "xt": "xt $type $name",
	"set": "$op $set", "payload": "$tunnel $protocol $field", "fib": "fib $flags $result", "prefix": "$addr/$len", "elem": "$val", "counter": "",
}

// separators has what stands between the parts of an operation.
var separators = map[string]string{"range": "-", "concat": " . ", "&": " & ", "|": " | ", "^": " ^ ", "<<": " << ", ">>": " >> "}

// maxShown limits how many elements of a set are shown.
const maxShown = 8

// expression returns an expression, a statement or a list of these in one line. It is
// for people, in Result.Rule and Result.Reason; "" for a counter, which nobody needs
// to see.
func expression(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []any:
		return list(v, ", ")
	case object:
		if name, value := member(v); name != "" {
			return operation(name, value)
		}
	}
	return fmt.Sprint(v)
}

// operation returns the text of an expression or a statement, by its name and its
// value in nft's JSON (see member).
func operation(name string, value any) string {
	args, _ := value.(object)
	parts, isList := value.([]any)
	template, known := templates[name]
	switch {
	case name == "set" && isList:
		return "{ " + shorten(parts) + " }"
	case name == "payload" && args["base"] != nil:
		template = "@$base,$offset,$len"
	case name == "match" && (args["op"] == "==" || args["op"] == "in"):
		template = "$left $right"
	case separators[name] != "" && isList:
		return list(parts, separators[name])
	case !known: // a part that the expression does not have is "", and its blank is removed below
		template = name + " $dir $family $name $key $field $target"
	}
	text := os.Expand(template, func(key string) string { return expression(args[key]) })
	return strings.Join(strings.Fields(text), " ")
}

// list returns the texts of the items that have one.
func list(items []any, separator string) string {
	var words []string
	for _, item := range items {
		words = append(words, expression(item))
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), separator)
}

// shorten returns the elements of a set or map, as many as people read. Those of a map
// are pairs.
func shorten(all []any) string {
	var words []string
	for _, e := range all[:min(len(all), maxShown)] {
		if pair, ok := e.([]any); ok {
			e = list(pair, " : ")
		}
		words = append(words, expression(e))
	}
	if len(all) > maxShown {
		words = append(words, "…")
	}
	return strings.Join(words, ", ")
}
