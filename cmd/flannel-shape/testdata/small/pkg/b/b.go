package b

import "flannel/pkg/a"

// Of has the name.
func Of(v any) string {
	if asker, ok := v.(a.Asker); ok {
		return asker.Ask()
	}
	switch v := v.(type) {
	case interface{ Name() string }:
		return v.Name()
	case interface{ Unwrap() []error }:
		return v.Unwrap()[0].Error()
	case error:
		return v.Error()
	}
	return ""
}
