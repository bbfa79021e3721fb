package conf

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"flannel/pkg/redact"
)

const (
	maxValue = 60 // characters of a value in a message
	maxKey   = 60 // likewise of a key
)

// show writes a value for a message: bounded, on one line, and not at all where the key says that it is a secret.
func show(key string, v any) string {
	if redact.IsSecret(key) {
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

func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a truth value"
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

// showKey leaves ordinary keys alone; one with strange characters is quoted, for it may come from anybody.
func showKey(key string) string {
	for _, r := range key {
		if r <= ' ' || r > '~' {
			return fmt.Sprintf("%q", clip(key, maxKey))
		}
	}
	return clip(key, maxKey)
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

var lineEnds = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ")

func oneLine(s string) string { return lineEnds.Replace(s) }

// Nearest returns the word of known that key is most likely a misspelling of, or "".
func Nearest(key string, known []string) string {
	if len(key) < 2 || len(key) > maxKey { // one letter is near to every other
		return ""
	}
	best, nearest := max(1, len(key)/3)+1, ""
	for _, k := range known {
		if d := distance(fold(key), fold(k)); d < best {
			best, nearest = d, k
		}
	}
	return nearest
}

// distance counts the letters to insert, delete, replace or swap with their neighbour that make a into b.
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
