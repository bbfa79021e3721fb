// This file has the parts of messages for people: values, keys and suggestions.

package conf

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

const (
	maxValue = 60 // characters of a value in a message
	maxKey   = 60 // characters of a key in a message
)

// show returns the value at key for a message: on one line and clipped. It
// hides the value if it is a secret by its key.
func show(key string, v any) string {
	if IsSecret(key) {
		return "the value (hidden)"
	}
	switch v := v.(type) {
	case string:
		return clip(strconv.Quote(clip(v, maxValue-2)), maxValue)
	case json.Number:
		return clip(string(v), maxValue)
	case bool:
		return strconv.FormatBool(v)
	}
	return "the value"
}

// kind returns the kind of a value, or of the first token of a text.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case *Object:
		return "an object"
	case []any:
		return "a list"
	case json.Delim:
		if v == '[' {
			return "a list"
		}
	}
	return "something else"
}

// showKey returns a key for a message: clipped, and quoted if it has other
// characters than printable ASCII.
func showKey(key string) string {
	for _, r := range key {
		if r <= ' ' || r > '~' {
			return fmt.Sprintf("%q", clip(key, maxKey))
		}
	}
	return clip(key, maxKey)
}

// clip shortens s to n characters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// lineEnds replaces the ends of lines by blanks.
var lineEnds = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ")

// oneLine returns a text on one line, as each problem has to be.
func oneLine(s string) string { return lineEnds.Replace(s) }

// nearest returns the known key that the user probably meant by a misspelled
// one; "": there is none.
func nearest(key string, known []string) string {
	if len(key) < 2 || len(key) > maxKey { // every other letter would be near to a single one
		return ""
	}
	best, nearest := max(1, len(key)/3)+1, "" // a third of the letters may be wrong
	key = fold(key)
	for _, k := range known {
		folded := fold(k)
		if longer := max(len(key), len(folded)) - min(len(key), len(folded)); longer >= best {
			continue // that many bytes to insert or delete
		}
		if d := distance(key, folded); d < best {
			best, nearest = d, k
		}
	}
	return nearest
}

// distance returns the number of changes from a to b: bytes to insert, delete,
// replace, or swap with the next one (optimal string alignment). Of its matrix,
// it keeps three rows: row, last and before.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
