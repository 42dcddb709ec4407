package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Confirm prompts the user to type a word, and returns nil if the user types it. The parameter what describes the word
// in the prompt, for example "the id of the node". For other input, Confirm returns fault.Denied. If there is no input,
// it returns a UsageError that suggests --yes. A command with the flag --yes must not call Confirm if the flag is
// given.
func (s *Shell) Confirm(word, what string) error {
	fmt.Fprintf(s.Stderr, "Type %s (%s) to continue: ", what, word)
	line, err := bufio.NewReader(s.Stdin).ReadString('\n')
	if strings.TrimSpace(line) == word {
		return nil
	}
	fmt.Fprintln(s.Stderr)
	if errors.Is(err, io.EOF) && line == "" {
		return Usagef("there is no input to confirm with (add --yes to continue without a confirmation)")
	}
	return &fault.Error{Code: fault.Denied, Op: "cli.confirm", Msg: "not confirmed; nothing was changed"}
}
