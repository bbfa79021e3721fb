package kube

import (
	"testing"
	"time"
)

// An Event with the same message is written again within the hour if the opposite one was written between them.
func TestSecondOutage(t *testing.T) {
	for _, reasons := range [][2]string{{reasonUnreachable, reasonReachable}, {reasonNotSynced, reasonSynced}} {
		f, now := newEventFilter(), time.Now()
		for range 2 {
			for _, reason := range reasons {
				if write, wait := f.next(reason, reason, now); !write {
					t.Fatalf("%s waits %v", reason, wait)
				}
				f.written(event{reason: reason, message: reason}, now)
				if write, _ := f.next(reason, reason, now.Add(interval)); write {
					t.Errorf("%s is repeated", reason)
				}
				now = now.Add(interval)
			}
		}
	}
}
