package bindings

import (
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// MetadataDirection is the metadata name of the direction. It can limit a binding that has an input and an output to
// one of them.
const MetadataDirection = "direction"

// MetadataRoute is the metadata name of the application path that receives the events. The default path is the name of
// the component.
const MetadataRoute = "route"

// Direction says whether a binding is used as input, output or both. The zero value means that the component does
// not set the direction.
type Direction struct{ Input, Output bool }

// Given reports whether the component sets a direction.
func (d Direction) Given() bool { return d.Input || d.Output }

// ParseDirection parses "input", "output", or both words separated by a comma. It ignores case. It returns the zero
// value for an empty text, and fault.Invalid for any other text.
func ParseDirection(text string) (Direction, error) {
	var d Direction
	if text == "" {
		return d, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		switch strings.ToLower(strings.TrimSpace(word)) {
		case "input":
			d.Input = true
		case "output":
			d.Output = true
		default:
			return Direction{}, fault.New(fault.Invalid, "bindings.ParseDirection",
				`must be "input", "output" or "input, output"`)
		}
	}
	return d, nil
}
