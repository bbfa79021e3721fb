package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/status"
)

// Control sequences of terminals (ECMA-48, and xterm's for the other screen).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // a screen of its own, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l" // as before
	toTop       = "\x1b[H"
	endLine     = "\x1b[K" // erase what an earlier frame had after this
	endFrame    = "\x1b[J" // and below
)

// errNoTerminal is why there is no picture to show.
var errNoTerminal = errors.New("status: --watch needs a terminal; for a program, repeat status --json")

// watchStatus shows the status until ctx ends (Ctrl-C): it replaces the picture
// every period, or when the size of the terminal changes. A daemon that does not
// answer is shown, too, because it may come back. showStatus has checked that there
// is a terminal (screen is not nil).
func (c *call) watchStatus(ctx context.Context, o status.PrintOptions, period, timeout time.Duration) int {
	restore, err := enableSequences(c.stdout)
	if err != nil {
		return c.reportError(err)
	}
	defer restore()
	if _, err := io.WriteString(c.stdout, enterScreen); err != nil {
		return c.reportError(err)
	}
	defer io.WriteString(c.stdout, leaveScreen) //nolint:errcheck // nobody is left who could see it
	for ctx.Err() == nil {
		text := c.statusText(ctx, o, timeout)
		columns, lines := c.screen()
		if ctx.Err() != nil { // text may be the error of the end
			break
		}
		// One write, and no clearing before it: the terminal shows no empty picture.
		if _, err := io.WriteString(c.stdout, frame(text, columns, lines)); err != nil {
			return c.reportError(err)
		}
		c.untilResized(ctx, period, columns, lines)
	}
	return exitOK
}

// statusText returns the status as text, or the reason why there is none.
func (c *call) statusText(ctx context.Context, o status.PrintOptions, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := status.Ask(ctx, status.Socket(c.SubnetFile))
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	if err := status.Print(&text, r, time.Now(), o); err != nil {
		return err.Error()
	}
	return text.String()
}

// untilResized returns after the period, or earlier if ctx ends or the terminal
// has another size.
func (c *call) untilResized(ctx context.Context, period time.Duration, columns, lines int) {
	const look = 200 * time.Millisecond
	for end := time.Now().Add(period); ctx.Err() == nil && time.Now().Before(end); {
		reconcile.Pause(ctx, min(look, time.Until(end)))
		if w, h := c.screen(); w != columns || h != lines {
			return
		}
	}
}

// frame returns what a terminal needs to show a text instead of the last one:
// as much as it has place for, and in the last line how much is missing.
func frame(text string, columns, lines int) string {
	rows := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if missing := len(rows) - lines + 1; lines > 1 && len(rows) > lines {
		rows = append(rows[:lines-1], fmt.Sprintf("… %d more lines", missing))
	}
	var b strings.Builder
	b.WriteString(toTop)
	for i, row := range rows {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(cut(row, columns) + endLine)
	}
	b.WriteString(endFrame)
	return b.String()
}

// cut shortens a row to the width of the terminal, where it would go on in the
// next line otherwise. The last column stays empty, because the terminal would
// erase what is there with the end of the line.
func cut(row string, columns int) string {
	runes := []rune(row)
	if columns < 2 || len(runes) < columns {
		return row
	}
	return string(runes[:columns-2]) + "…"
}
