package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
)

// Output holds the choice between text and JSON output.
type Output struct{ form outputForm }

// Bind adds the flag -o to the command, and the flag --json, which means -o json.
func (o *Output) Bind(c *cobra.Command) {
	o.form = "text"
	c.Flags().VarP(&o.form, "output", "o", "output format: text or json")
	c.Flags().Var((*jsonSwitch)(&o.form), "json", "the same as -o json")
	c.Flags().Lookup("json").NoOptDefVal = "true"
	_ = c.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

func (o *Output) JSON() bool { return o.form == "json" }

// outputForm is the value of -o.
type outputForm string

func (f *outputForm) String() string { return string(*f) }
func (f *outputForm) Type() string   { return "form" }
func (f *outputForm) Set(s string) error {
	if s != "text" && s != "json" {
		return errors.New("give text or json")
	}
	*f = outputForm(s)
	return nil
}

// jsonSwitch is the value of --json, which sets the same field as -o.
type jsonSwitch outputForm

func (f *jsonSwitch) String() string { return "" }
func (f *jsonSwitch) Type() string   { return "bool" }
func (f *jsonSwitch) Set(s string) error {
	switch s {
	case "true":
		*f = "json"
	case "false":
		*f = "text"
	default:
		return errors.New("give true or false")
	}
	return nil
}

// WriteJSON writes v as indented JSON, without HTML escapes.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteJSONLine writes v as JSON on one line, without HTML escapes.
func WriteJSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Table prints rows in columns. The first row is the heading.
func Table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		line := strings.TrimRight(strings.Join(row, "\t"), "\t ")
		if _, err := fmt.Fprintln(t, line); err != nil {
			return err
		}
	}
	return t.Flush()
}

// BytesText formats a number of bytes for people.
func BytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, suffix := float64(n)/unit, "KMGTPE"
	for value >= unit && len(suffix) > 1 {
		value, suffix = value/unit, suffix[1:]
	}
	return fmt.Sprintf("%.1f %ciB", value, suffix[0])
}

// Dash returns s, or a dash if s is empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Count returns n and the noun as text. It appends an s to the noun unless n is 1.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Printable returns key in a form that is safe to print. If key contains unprintable characters, Printable quotes it,
// because control characters could change the state of the terminal.
func Printable(key string) string {
	for _, r := range key {
		if !unicode.IsPrint(r) {
			return strconv.Quote(key)
		}
	}
	return key
}
