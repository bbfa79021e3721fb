package reconcile

import "time"

// Once decides which results of repeated tries are worth a line in the log: an error when its text is another one than
// that of the last line, and the first success after such a line.
type Once struct {
	Grace  time.Duration // errors do not count until tries have failed for longer than this
	Repeat time.Duration // an error counts again after this time; 0: never

	since time.Time // of the first failure after a success; zero: the last try succeeded
	text  string    // of the last error that counted; "": none since the last success
	at    time.Time // when it counted
}

// Due records a result, and reports whether it counts.
func (o *Once) Due(err error, now time.Time) bool {
	if err == nil {
		told := !o.at.IsZero()
		o.since, o.text, o.at = time.Time{}, "", time.Time{}
		return told
	}
	if o.since.IsZero() {
		o.since = now
	}
	if o.Grace > 0 && now.Sub(o.since) <= o.Grace {
		return false
	}
	if !o.at.IsZero() && o.text == err.Error() && (o.Repeat == 0 || now.Sub(o.at) < o.Repeat) {
		return false
	}
	o.text, o.at = err.Error(), now
	return true
}
