# Usage: setup.sh STATE BASH FOLDER... - started by unshare, with namespaces of its own; runs /.cell/run.sh in the cell.
# The cell sees the machine's folders through overlays whose changes are thrown away. Sockets, pipes and devices in them
# are not those of the machine, there is no network, and no process of the machine is seen.
set -e
PATH=$PATH:/usr/sbin:/sbin
state=$1 bash=$2
shift 2
root=$state/root
mount -t tmpfs -o size=256m,mode=755 cell "$root"
cd "$root"
mkdir -p .cell/records proc dev

copied() {
    mkdir -p ".$1" ".cell/up$1" ".cell/work$1"
    mount -t overlay -o "lowerdir=$1,upperdir=.cell/up$1,workdir=.cell/work$1,userxattr" cell ".$1"
}
for folder in /*; do
    case $folder in /proc | /dev | /sys | /run | /boot | /lost+found) continue ;; esac
    if [ -L "$folder" ]; then
        cp -P "$folder" ".$folder"
    elif [ -d "$folder" ]; then
        copied "$folder" 2>>.cell/missing || :
    fi
done
for folder; do # mounts below the folders above are not seen through them
    [ -e ".$folder" ] || copied "$(stat -c %m "$folder")"
done
[ -x ".$bash" ]

mount -t proc -o ro proc proc 2>/dev/null || :
for device in null zero urandom; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
cp -r "$state/given/." .cell
mount --bind .cell/script ".$1"
pivot_root . .
umount -l .
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$bash" -p /.cell/run.sh "$bash"
