package kube

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/reconcile"
)

// rereadConfig is the interval for a file that cannot be read: a change of its permissions or its owner notifies nobody.
const rereadConfig = 5 * time.Second

// WatchConfig implements subnet.Manager. The network configuration is a file, usually of a mounted ConfigMap.
func (m *Manager) WatchConfig(ctx context.Context, changed func([]byte)) error {
	fileChanged, err := file.Watch(ctx, m.o.NetConf)
	if err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	var last []byte // nil before the first configuration
	// The Runner calls Work at the start, after each change, and every rereadConfig after an error; and Tell with a new
	// error, and with nil at its end. Both run on this goroutine.
	r := reconcile.Runner{
		News:  []<-chan struct{}{fileChanged},
		Retry: reconcile.Backoff{First: rereadConfig},
		Work: func(context.Context) (time.Duration, error) {
			raw, err := file.ReadTrusted(m.o.NetConf) // on Windows, it refuses the file of an untrusted account
			if err == nil && len(raw) == 0 {          // probably it is just being written
				err = fmt.Errorf("%s is empty", m.o.NetConf)
			}
			if err != nil {
				return 0, err
			}
			m.reportConfig(nil)
			if last == nil || !bytes.Equal(last, raw) {
				last = raw
				changed(raw)
			}
			return 0, nil
		},
		Tell: func(err error) {
			switch {
			case err == nil: // Work has reported that nothing is missing
			case last == nil:
				m.reportConfig(fmt.Errorf("no network configuration: %w; mount the ConfigMap that has the key net-conf.json, or set --net-config-path", err))
				m.log.Warn("cannot read the network configuration, waiting for it", "cause", causeNoConfig, "error", err)
			default:
				m.log.Warn("cannot read the network configuration any more, keeping the last one", "cause", causeConfigGone, "error", err)
			}
		},
	}
	r.Run(ctx)
	return nil
}

// reportConfig sets what ConfigMissing returns; nil: nothing is missing.
func (m *Manager) reportConfig(missing error) { m.configMissing.Store(&missing) }

// ConfigMissing implements subnet.Manager.
func (m *Manager) ConfigMissing() error {
	if missing := m.configMissing.Load(); missing != nil {
		return *missing
	}
	return nil
}
