package daemon

import (
	"time"

	"flannel/pkg/a"
	"flannel/pkg/b"
)

type node struct {
	thing, other a.Thing
	backoff      time.Duration
}

func (n *node) name() string { return b.Of(n) }
