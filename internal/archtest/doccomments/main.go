// Command doccomments prints a random sample of doc comments. People then rate whether each of them can be understood
// at the first reading.
//
//	go run ./internal/archtest/doccomments -seed 7
//
// The sample depends only on the seed and the sources. It contains doc comments of packages and of top-level
// declarations, but none of tests. The command owns this random choice.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/archtest/tree"
)

func main() {
	root := flag.String("root", ".", "the repository")
	n := flag.Int("n", 60, "how many comments")
	longer := flag.Int("longer", 90, "only comments of more characters than this")
	seed := flag.Uint64("seed", 0, "seed of the draw; 0 = a new one")
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) //nolint:gosec // chance, not a secret
	}
	if err := run(os.Stdout, *root, *n, *longer, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "doccomments: "+err.Error())
		os.Exit(1)
	}
}

// comment is one doc comment and where it is.
type comment struct {
	file string
	line int
	text string
}

func run(out io.Writer, root string, n, longer int, seed uint64) error {
	files, err := tree.Files(root)
	if err != nil {
		return err
	}
	var all []comment
	for _, f := range files {
		if !strings.HasSuffix(f.Name, ".go") || strings.HasSuffix(f.Name, "_test.go") {
			continue
		}
		found, err := comments(f, longer)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	fmt.Fprintf(out, "seed %d: %d of %d doc comments of more than %d characters\n", seed, min(n, len(all)), len(all),
		longer)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // chance, not a secret
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, c := range all[:min(n, len(all))] {
		fmt.Fprintf(out, "\n%d. %s:%d\n\t%s\n", i+1, c.file, c.line, strings.ReplaceAll(c.text, "\n", "\n\t"))
	}
	return nil
}

// comments returns the doc comments in the file f. It omits comments of at most longer characters.
func comments(f tree.File, longer int) (out []comment, err error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, f.Name, f.Text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(doc *ast.CommentGroup) {
		if text := strings.TrimSpace(doc.Text()); len([]rune(text)) > longer {
			out = append(out, comment{f.Name, fset.Position(doc.Pos()).Line, text})
		}
	}
	add(parsed.Doc)
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d.Doc)
		case *ast.GenDecl:
			add(d.Doc)
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Doc)
				case *ast.ValueSpec:
					add(spec.Doc)
				}
			}
		}
	}
	return out, nil
}
