// The files that GitHub's own globber finds, as actions/upload-artifact calls it: reads a list of inputs
// from stdin, each the text of `path`, and answers with a list of lists.
//
// usage: node glob.mjs, in the folder that relative patterns start in
import { readFileSync, statSync } from 'node:fs'
import { relative } from 'node:path'
import { create } from '@actions/glob'

const answers = []
for (const patterns of JSON.parse(readFileSync(0, 'utf8'))) {
  try {
    const globber = await create(patterns, {
      followSymbolicLinks: true,
      implicitDescendants: true,
      omitBrokenSymbolicLinks: true,
      excludeHiddenFiles: true
    })
    const found = await globber.glob()
    const files = found.filter(path => !statSync(path).isDirectory())
    answers.push(files.map(path => relative(process.cwd(), path)).sort())
  } catch (error) {
    answers.push({ refused: String(error) })
  }
}
console.log(JSON.stringify(answers))
