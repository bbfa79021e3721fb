package daemon

import "errors"

// What a line of the log says in the attribute cause, for those who search the log and for tests.
const (
	causeNoConfig         = "no-config"
	causeCannotStart      = "cannot-start"
	causeRejoin           = "rejoin"
	causeInStep           = "in-step"
	causeNotInStep        = "not-in-step"
	causePeerRejected     = "peer-rejected"
	causePeerRefused      = "peer-refused" // by the system
	causePeerRecovered    = "peer-recovered"
	causePeersOmitted     = "peers-omitted" // from the log
	causeWindowsMismatch  = "windows-mismatch"
	causeDuplicateMAC     = "duplicate-mac"
	causeUnderlayChanged  = "underlay-changed"
	causeConfigWarning    = "config-warning"
	causeConfigChanged    = "config-changed"
	causeConfigRefused    = "config-refused"
	causeConfigKept       = "config-kept" // by --config-follow=false
	causeConfigDisruptive = "config-disruptive"
	causeConfigTrial      = "config-trial"
	causeConfigReverted   = "config-reverted"
	causeConfigUnproven   = "config-unproven"
)

// causeOf is the cause of the first error in the tree of err that has one.
func causeOf(err error, otherwise string) string {
	if c := (interface{ Cause() string })(nil); errors.As(err, &c) {
		return c.Cause()
	}
	return otherwise
}

// caused is an error with a cause.
type caused struct {
	error
	cause string
}

func (c caused) Cause() string { return c.cause }
func (c caused) Unwrap() error { return c.error }
