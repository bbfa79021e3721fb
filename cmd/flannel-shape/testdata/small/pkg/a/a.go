package a

import "time"

// Asker may be asked for.
type Asker interface{ Ask() string }

type Thing struct{ value any }

func (t *Thing) Ask() string { return "" }

func (t *Thing) hidden() {}

func Pause() { <-time.After(time.Second) }
