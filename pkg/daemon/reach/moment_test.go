package reach

import (
	"testing"
	"time"
	"unsafe"
)

// The times in reports are those of the present wall clock, if it was set after the start.
func TestClockSet(t *testing.T) {
	m := newMesh(nil, nil)
	*(*uint64)(unsafe.Pointer(&m.began)) -= 3600 << 30 // the seconds of the wall clock; the monotonic reading stays
	if off := time.Now().Round(0).Sub(m.time(m.at(time.Now())).Round(0)); off.Abs() > time.Minute {
		t.Errorf("the time is off by %v", off)
	}
}
