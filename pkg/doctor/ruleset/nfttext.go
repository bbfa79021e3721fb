package ruleset

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// describe returns the statements of a rule much as nft prints them, for people.
func describe(statements []object) string {
	var words []string
	for _, s := range statements {
		for name, value := range s { // one
			if text := statement(name, value); text != "" {
				words = append(words, text)
			}
		}
	}
	return strings.Join(words, " ")
}

func statement(name string, value any) string {
	args, _ := value.(object)
	switch name {
	case "match":
		operator := fmt.Sprint(args["op"], " ")
		if operator == "== " || operator == "in " {
			operator = ""
		}
		return expression(args["left"]) + " " + operator + expression(args["right"])
	case "vmap":
		return expression(args["key"]) + " vmap " + expression(args["data"])
	case "mangle":
		return expression(args["key"]) + " set " + expression(args["value"])
	case "jump", "goto":
		return fmt.Sprint(name, " ", args["target"])
	case "xt":
		return fmt.Sprint("xt ", args["type"], " ", args["name"])
	case "set":
		return fmt.Sprint(args["op"], " ", args["set"])
	case "counter":
		return ""
	}
	return name
}

// expression returns an expression much as nft prints it. What it does not know it
// returns as JSON.
func expression(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []any:
		return list(v, ", ")
	case object:
		if len(v) == 1 {
			for name, value := range v {
				if text, ok := operation(name, value); ok {
					return text
				}
			}
		}
	}
	raw, _ := json.Marshal(v) //nolint:errchkjson // it was JSON
	return string(raw)
}

func operation(name string, value any) (text string, ok bool) {
	args, _ := value.(object)
	parts, _ := value.([]any)
	switch name {
	case "payload":
		if args["base"] != nil {
			return fmt.Sprintf("@%v,%v,%v", args["base"], args["offset"], args["len"]), true
		}
		return fmt.Sprint(args["protocol"], " ", args["field"]), true
	case "meta", "ct":
		return fmt.Sprint(name, " ", args["key"]), true
	case "fib":
		return fmt.Sprint("fib ", expression(args["flags"]), " ", args["result"]), true
	case "prefix":
		return fmt.Sprint(args["addr"], "/", args["len"]), true
	case "range":
		return list(parts, "-"), true
	case "concat":
		return list(parts, " . "), true
	case "set":
		return "{ " + shorten(parts) + " }", true
	case "elem":
		return expression(args["val"]), true
	case "accept", "drop", "return":
		return name, true
	case "jump", "goto":
		return fmt.Sprint(name, " ", args["target"]), true
	}
	if slices.Contains([]string{"&", "|", "^", "<<", ">>"}, name) {
		return list(parts, " "+name+" "), true
	}
	return "", false
}

func list(items []any, separator string) string {
	var words []string
	for _, item := range items {
		words = append(words, expression(item))
	}
	return strings.Join(words, separator)
}

// maxShown limits how many elements of a set are shown.
const maxShown = 8

// shorten returns the elements of a set or map, as many as people read.
func shorten(elements []any) string {
	var words []string
	for i, e := range elements {
		if i == maxShown {
			words = append(words, "…")
			break
		}
		if pair, ok := e.([]any); ok {
			words = append(words, list(pair, " : "))
			continue
		}
		words = append(words, expression(e))
	}
	return strings.Join(words, ", ")
}
