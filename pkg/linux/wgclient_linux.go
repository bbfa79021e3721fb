package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"flannel/pkg/reconcile"
)

// wgClient reads and configures WireGuard devices: of the kernel by generic netlink, and
// of wireguard-go by the socket /run/wireguard/<device>.sock. A process that is stopped
// does not answer, so every call runs in a goroutine of its own, one at a time.
//
// Errors are fs.ErrNotExist (no such device, or it is not a WireGuard device),
// reconcile.Unknown (no answer), or the refusal of a configuration. The wgStore has one
// wgClient. Its methods are called by the loop, or the goroutine of Apply for which the loop
// waits (see Driver), so that one goroutine at a time has the fields.
type wgClient struct {
	client *wgctrl.Client // nil before the first call, and after an error
	busy   chan error     // receives the result of a call that had no answer in time, when it ends; nil: there is none
}

// device returns the configuration and the peers of a device.
func (c *wgClient) device(name string) (dev *wgtypes.Device, err error) {
	err = c.call(func(client *wgctrl.Client) (err error) {
		dev, err = client.Device(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read WireGuard's device %s: %w", name, unknownUnlessMissing(err))
	}
	return dev, nil
}

// unknownUnlessMissing marks errors of reading as unknown, except that the device does not exist.
func unknownUnlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return reconcile.Unknown(err)
}

// configure changes what config has set; its nil fields stay as they are. The error does not
// contain the configuration, with its keys.
func (c *wgClient) configure(name string, config wgtypes.Config) error {
	return c.call(func(client *wgctrl.Client) error { return client.ConfigureDevice(name, config) })
}

// call runs f with a client. A client that was opened before the kernel loaded the
// module does not know the devices of the kernel, so a missing device is looked for
// with a new one.
func (c *wgClient) call(f func(*wgctrl.Client) error) error {
	fresh := c.client == nil
	err := c.try(f)
	if errors.Is(err, fs.ErrNotExist) && !fresh {
		c.close()
		err = c.try(f)
	}
	return err
}

// try runs f in a goroutine, and waits for it up to answerTimeout. While an earlier call
// still runs, it fails at once.
func (c *wgClient) try(f func(*wgctrl.Client) error) error {
	if c.busy != nil {
		select {
		case <-c.busy: // it has ended; its result is too late
			c.busy = nil
		default:
			return reconcile.Unknown(errWGBusy)
		}
	}
	if c.client == nil {
		client, err := wgctrl.New()
		if err != nil {
			return reconcile.Unknown(fmt.Errorf("open WireGuard's netlink socket: %w", err))
		}
		c.client = client
	}
	client, done := c.client, make(chan error, 1) // the goroutine ends even if nobody receives
	go func() { done <- f(client) }()
	select {
	case err := <-done:
		if err != nil {
			c.close() // the rest of an answer may wait in its socket
		}
		return err
	case <-time.After(answerTimeout):
		c.busy, c.client = done, nil // the goroutine still uses the client
		return reconcile.Unknown(errWGBusy)
	}
}

// errWGBusy: the kernel answers at once, so it is wireguard-go that does not.
var errWGBusy = fmt.Errorf("no answer for %v: if the device is one of wireguard-go, its process is stopped or hangs", answerTimeout)

func (c *wgClient) close() {
	if c.client != nil {
		_ = c.client.Close() // there is nothing to be done about it
		c.client = nil
	}
}
