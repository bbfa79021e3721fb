package linux

import (
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/linux/rtnetlink"
)

// Closing does not wait for a notification: a restart of the daemon would take as much longer.
func TestCloseIsPrompt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for range 20 {
			d, err := New(driver.Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // it waits now, usually; the test passes as well if it does not yet
			closed := make(chan error, 1)
			go func() { closed <- d.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("closing waits for the watcher")
			}
		}
	})
}

// Only tunnels of the kernel with properties of their own are watched, by the kernel's name of the type.
func TestWatchedProperties(t *testing.T) {
	for kind, want := range map[string]string{"vxlan": "data", "ipip": "data", "wireguard": "", "tun": "", "tuntap": "", "bridge": "", "": ""} {
		info := rtnetlink.Message(nil).Attr(unix.IFLA_INFO_KIND, []byte(kind+"\x00")).Attr(unix.IFLA_INFO_DATA, []byte("data"))
		if got := tunnelData(info); got != want {
			t.Errorf("of type %q, the properties are %q, want %q", kind, got, want)
		}
	}
}
