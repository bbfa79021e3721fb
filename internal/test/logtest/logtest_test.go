package logtest

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
)

func TestRecords(t *testing.T) {
	var l Log
	log := l.Logger().With("key", "a b")
	log.Warn("a line = of several words", "cause", "store-silent", "error", errors.New("first\nsecond \"line\""))
	log.Info("short", "empty", "", "odd key", "x=y", "key", "c")
	log.Debug("not kept", "cause", "store-silent")
	l.Write([]byte("goroutine 1 [running]:\nmain.main()\n\tmain.go:7 +0x1d\n")) //nolint:errcheck // never fails
	all := l.With()
	if len(all) != 2 || all[0]["level"] != slog.LevelWarn.String() || all[0]["error"] != "first\nsecond \"line\"" || all[0]["key"] != "a b" {
		t.Errorf("got %d: %v", len(all), all)
	}
	if got := all[1]; got["empty"] != "" || got["odd key"] != "x=y" || got["key"] != "c" {
		t.Errorf("got %v", got)
	}
	if got := l.With("cause=store-silent", "key=a b"); len(got) != 1 || len(l.With("cause=store-silent", "key=c")) != 0 || len(l.With("none=")) != 0 {
		t.Errorf("got %v", got)
	}
	if got := all.Values("cause"); !slices.Equal(got, []string{"store-silent", ""}) {
		t.Errorf("got %q", got)
	}
	if l.Reset(); len(l.With()) != 0 || all.String() == "" {
		t.Errorf("got %q", all.String())
	}
	if !Lines("--a: 7 is wrong\n--b: 8 too", "--a: 7\n--b: 8") || Lines("--a: 7\n--b: 8", "--a: 7") || Lines("--a: 7", "--a: 8") {
		t.Error("Lines compared wrongly")
	}
	if !Names("--iface=eth0 is not there", "--iface", "eth0") || Names("--iface=eth0 is not there", "eth1") {
		t.Error("Names compared wrongly")
	}
}
