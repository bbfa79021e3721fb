package kube

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"flannel/pkg/file"
)

// rereadConfig is the interval for a file that cannot be read: a change of its permissions or its owner notifies nobody.
const rereadConfig = 5 * time.Second

// WatchConfig implements subnet.Manager. The network configuration is a file.
func (m *Manager) WatchConfig(ctx context.Context, changed func([]byte)) error {
	fileChanged, err := file.Watch(ctx, m.o.NetConf)
	if err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	var last []byte // nil before the first configuration
	logged := ""    // the error that was logged last
	for {
		raw, err := file.ReadTrusted(m.o.NetConf)
		if err == nil && len(raw) == 0 { // probably it is just being written
			err = fmt.Errorf("%s is empty", m.o.NetConf)
		}
		switch {
		case err == nil:
			m.reportConfig(nil)
			if logged = ""; last == nil || !bytes.Equal(last, raw) {
				last = raw
				changed(raw)
			}
		case err.Error() == logged:
		case last == nil:
			logged = err.Error()
			m.reportConfig(fmt.Errorf("no network configuration: %w; mount the ConfigMap that has the key net-conf.json, or set --net-config-path", err))
			m.log.Warn("cannot read the network configuration, waiting for it", "cause", causeNoConfig, "error", err)
		default:
			logged = err.Error()
			m.log.Warn("cannot read the network configuration any more, keeping the last one", "cause", causeConfigGone, "error", err)
		}
		var again <-chan time.Time // nil: only when the file changes
		if err != nil {
			again = time.After(rereadConfig)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-fileChanged:
		case <-again:
		}
	}
}

// reportConfig sets what ConfigMissing returns.
func (m *Manager) reportConfig(missing error) { m.configMissing.Store(&missing) }

// ConfigMissing implements subnet.Manager.
func (m *Manager) ConfigMissing() error {
	if missing := m.configMissing.Load(); missing != nil {
		return *missing
	}
	return nil
}
