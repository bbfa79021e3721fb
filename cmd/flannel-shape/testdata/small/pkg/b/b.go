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
	case error:
		return v.Error()
	}
	return ""
}
