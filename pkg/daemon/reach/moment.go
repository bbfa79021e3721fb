package reach

import "time"

// moment is a time.Time in a third of its memory, since each target has many: nanoseconds
// since the mesh was made. The zero moment is no time.
type moment int64

// at converts a time, which is not before the mesh was made.
func (m *mesh) at(t time.Time) moment { return moment(t.Sub(m.began)) + 1 }

// time is the inverse of at, by the present wall clock: the clock may have been set since the mesh was made.
func (m *mesh) time(t moment) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(time.Duration(t-1) - now.Sub(m.began))
}

func (m moment) IsZero() bool               { return m == 0 }
func (m moment) Add(d time.Duration) moment { return m + moment(d) }
func (m moment) Sub(o moment) time.Duration { return time.Duration(m - o) }
func (m moment) Before(o moment) bool       { return m < o }
func (m moment) After(o moment) bool        { return m > o }
