package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/settings"
)

// withSettings gives c a flag for every setting and a help that lists them by group.
func withSettings(c *cobra.Command, set *settings.Set) {
	set.Bind(c.Flags())
	completeWords(c, set)
	c.SetUsageFunc(func(c *cobra.Command) error {
		fmt.Fprintf(c.OutOrStdout(), "Usage:\n  %s\n\n%s", c.UseLine(), settingsHelp(c, set))
		return nil
	})
}

// completeWords lets the shell complete flags whose values form a closed set.
func completeWords(c *cobra.Command, set *settings.Set) {
	for _, st := range set.All() {
		if words := st.Words(); words != nil && c.Flags().Lookup(st.Name) != nil {
			_ = c.RegisterFlagCompletionFunc(st.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// settingsHelp describes the flags of a command by group, then the few of its own.
func settingsHelp(c *cobra.Command, set *settings.Set) string {
	var b strings.Builder
	for _, g := range settings.Groups() {
		rows := [][]string{}
		for _, st := range set.All() {
			if st.Group == g && st.Flag() != "" {
				rows = append(rows, []string{"  " + st.Flag() + placeholder(st), describe(st)})
			}
		}
		fmt.Fprintf(&b, "%s:\n", g)
		_ = table(&b, rows) // a Builder takes everything
		b.WriteString("\n")
	}
	rows := [][]string{}
	for _, name := range []string{"json", "help"} {
		if f := c.Flags().Lookup(name); f != nil {
			rows = append(rows, []string{"  --" + f.Name, f.Usage})
		}
	}
	b.WriteString("Other flags:\n")
	_ = table(&b, rows)
	b.WriteString("\nEvery flag has an environment variable, --http-port for example QUORATE_HTTP_PORT, and a\n" +
		"key in the file of --config-file, httpPort. The flag wins, then the environment, then the file.\n")
	return b.String()
}

// placeholder stands for the value of a flag; a switch has none.
func placeholder(st *settings.Setting) string {
	if st.Kind() == settings.KindSwitch {
		return ""
	}
	return " " + st.Kind()
}

// describe is what help says about a setting in one line.
func describe(st *settings.Setting) string {
	text := st.Usage
	if words := st.Words(); words != nil && !strings.Contains(text, words[0]) {
		text += ": " + strings.Join(words, ", ")
	}
	if st.Default != "" && st.Default != "false" && st.Default != "0" {
		text += " (default " + st.Default + ")"
	}
	if len(st.Aliases) > 0 {
		text += " [also --" + strings.Join(st.Aliases, ", --") + "]"
	}
	return text
}
