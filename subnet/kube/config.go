package kube

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"flannel/pkg/file"
)

// WatchConfig hands over the network configuration, which is a file; see subnet.Manager.
func (m *Manager) WatchConfig(ctx context.Context, changed func([]byte)) error {
	news, err := file.Watch(ctx, m.o.NetConf)
	if err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	var last []byte // nil before the first
	said := ""      // what is wrong with the file
	for {
		raw, err := os.ReadFile(m.o.NetConf)
		if err == nil && len(raw) == 0 { // somebody is just about to write it
			err = fmt.Errorf("%s is empty", m.o.NetConf)
		}
		switch {
		case err == nil:
			if said = ""; last == nil || !bytes.Equal(last, raw) {
				last = raw
				changed(raw)
			}
		case err.Error() == said:
		case last == nil:
			said = err.Error()
			m.log.Warn("cannot read the network configuration: waiting for it", "cause", causeNoConfig, "error", err)
		default:
			said = err.Error()
			m.log.Warn("cannot read the network configuration any more: the last one stands", "cause", causeConfigGone, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		}
	}
}
